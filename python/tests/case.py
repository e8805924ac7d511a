"""What the tests share: a folder of their own, and tensors of every type that this torch has."""
import http.server
import os
import re
import shutil
import tempfile
import threading
import unittest

import safetensors.torch
import torch

from sluice._library import library

WRITES = hasattr(library, "sluice_create")
needs_writing = unittest.skipUnless(WRITES, "this libsluice does not write")
needs_editing = unittest.skipUnless(hasattr(library, "sluice_edit"), "this libsluice changes nothing in place")
make = safetensors.torch.save_file  # what is read does not depend on what is written

NAMES = ("float32", "float64", "float16", "bfloat16", "int8", "int16", "int32", "int64", "uint8", "bool", "complex64")
NEW = ("float8_e4m3fn", "float8_e5m2", "uint16", "uint32", "uint64")


def tensors():
    """One of each type; also without elements, and without dimensions."""
    found = {"scalar": torch.tensor(2.5), "empty": torch.empty(0, 3), "wide": torch.arange(24.0).reshape(4, 6)}
    for name in NAMES + NEW:
        if hasattr(torch, name):
            found[name] = torch.arange(6).reshape(2, 3).to(getattr(torch, name))
    return found


class Server(http.server.ThreadingHTTPServer):
    """Serves one file by ranges, until it is told to stall: then every answer stops for ever: after its first byte, or where
    stalls_at says in the file."""

    daemon_threads = True

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *words):
            pass

        def head(self):
            data = memoryview(self.server.data)  # what is sent is not copied
            found = re.match(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
            self.begin = begin = int(found[1]) if found else 0
            end = min(int(found[2]) + 1 if found and found[2] else len(data), len(data))
            self.send_response(206 if found else 200)
            self.send_header("Content-Length", str(end - begin))
            self.send_header("ETag", '"1"')
            self.send_header("Accept-Ranges", "bytes")
            if found:
                self.send_header("Content-Range", f"bytes {begin}-{end - 1}/{len(data)}")
            self.end_headers()
            return data[begin:end]

        def do_HEAD(self):
            self.head()

        def do_GET(self):
            body = self.head()
            at = self.server.stalls_at
            room = 1 if at is None else max(at - self.begin, 0)
            if not self.server.stalls.is_set() or (at is not None and len(body) <= room):
                self.wfile.write(body)
                return
            self.wfile.write(body[:room])
            self.wfile.flush()
            self.server.stalled.set()
            self.server.ended.wait()
            self.close_connection = True

    def __init__(self, path):
        super().__init__(("127.0.0.1", 0), self.Handler)
        with open(path, "rb") as file:
            self.data = file.read()
        self.url = f"http://127.0.0.1:{self.server_address[1]}/{os.path.basename(path)}"
        self.stalls_at = None
        self.connections, self.changed = 0, threading.Condition()
        self.stalls, self.stalled, self.ended = threading.Event(), threading.Event(), threading.Event()
        self.thread = threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True)
        self.thread.start()

    def handle_error(self, request, client_address):
        pass  # a client that left

    def count(self, more):
        with self.changed:
            self.connections += more
            self.changed.notify_all()

    def process_request(self, request, client_address):
        self.count(1)
        super().process_request(request, client_address)

    def shutdown_request(self, request):
        super().shutdown_request(request)
        self.count(-1)

    def await_idle(self, most):
        """Until its threads have closed all connections but so many; the test fails without it after a minute."""
        with self.changed:
            assert self.changed.wait_for(lambda: self.connections <= most, 60), f"{self.connections} connections are open"

    def close(self):
        self.ended.set()
        self.shutdown()
        self.thread.join()
        self.server_close()


def bits(tensor):
    """Its bytes: not every type can be compared."""
    tensor = tensor.detach().contiguous()
    return bytes(tensor.reshape(-1).view(torch.uint8).tolist()) if tensor.numel() else b""


class Case(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="sluice-test-")
        self.addCleanup(shutil.rmtree, self.folder)

    def at(self, name):
        return os.path.join(self.folder, name)

    def assertSame(self, left, right):
        """Types, shapes and bytes."""
        self.assertEqual(list(left), list(right))
        for name in left:
            self.assertEqual(left[name].dtype, right[name].dtype, name)
            self.assertEqual(tuple(left[name].shape), tuple(right[name].shape), name)
            self.assertEqual(bits(left[name]), bits(right[name]), name)

    def both(self, calls):
        """What two functions do: (result, None) or (None, type of the error), which must be equal."""
        found = []
        for call in calls:
            try:
                found.append((call(), None))
            except Exception as error:  # whatever the original raises
                found.append((None, type(error).__name__))
        return found
