"""A bucket of S3 in threads of the test: lists and gives what lies below a directory, and counts."""
import hashlib
import http.server
import os
import re
import threading
import urllib.parse
from xml.sax.saxutils import escape


class Bucket(http.server.ThreadingHTTPServer):
    """At self.endpoint, whatever the bucket's name. self.asked: the path of each request that came, "list" for a listing; self.connections:
    how many came."""

    daemon_threads = True

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version, wbufsize, disable_nagle_algorithm = "HTTP/1.1", 1 << 16, True  # an answer is sent at once

        def setup(self):
            super().setup()
            self.server.count()

        def log_message(self, *words):
            pass

        def answer(self, status, body, **headers):
            self.send_response(status)
            for name, value in {"Content-Length": len(body), **headers}.items():
                self.send_header(name.replace("_", "-"), str(value))
            self.end_headers()
            self.wfile.write(body)

        def do_GET(self):
            path, _, query = self.path.partition("?")
            key = urllib.parse.unquote(path).lstrip("/").partition("/")[2]
            asked = urllib.parse.parse_qs(query)
            self.server.count("list" if "list-type" in asked else key)
            if "list-type" in asked:
                self.answer(200, self.server.listing(asked.get("prefix", [""])[0]), Content_Type="application/xml")
                return
            data = self.server.read(key)
            found = re.match(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
            begin = int(found[1]) if found else 0
            end = min(int(found[2]) + 1 if found and found[2] else len(data), len(data))
            headers = {"ETag": self.server.etag(data)}
            if found:
                headers["Content_Range"] = f"bytes {begin}-{end - 1}/{len(data)}"
            self.answer(206 if found else 200, data[begin:end], **headers)

    def __init__(self, directory):
        super().__init__(("127.0.0.1", 0), self.Handler)
        self.directory, self.lock = directory, threading.Lock()
        self.asked, self.connections = [], 0
        self.endpoint = f"http://127.0.0.1:{self.server_address[1]}"
        self.thread = threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True)
        self.thread.start()

    def count(self, asked=None):
        """A request, or a connection."""
        with self.lock:
            if asked is None:
                self.connections += 1
            else:
                self.asked.append(asked)

    def read(self, key):
        with open(os.path.join(self.directory, key), "rb") as file:
            return file.read()

    @staticmethod
    def etag(data):
        return f'"{hashlib.md5(data).hexdigest()}"'

    def listing(self, prefix):
        """Of the objects of one folder."""
        items = ""
        for name in sorted(os.listdir(os.path.join(self.directory, prefix))):
            data = self.read(prefix + name)
            items += (f"<Contents><Key>{escape(prefix + name)}</Key><ETag>{escape(self.etag(data))}</ETag><Size>{len(data)}</Size>"
                      "<LastModified>2026-01-01T00:00:00.000Z</LastModified></Contents>")
        return f"<ListBucketResult><Prefix>{escape(prefix)}</Prefix><IsTruncated>false</IsTruncated>{items}</ListBucketResult>".encode()

    def handle_error(self, request, client_address):
        pass  # a client that left

    def close(self):
        self.shutdown()
        self.thread.join()
        self.server_close()
