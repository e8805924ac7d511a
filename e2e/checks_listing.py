"""Listings of 100,000 objects: they stream, so what is not wanted costs no memory, and what is wanted little."""
import fcntl
import os
import select
import socketserver
import subprocess
import threading
import urllib.parse

from harness import check

ROOMS = ("storage/store", "storage/http", "storage/s3", "model/plan")
KEYS, PAGE, FOLDERS, PICKED = 100_000, 1000, 100, 100
PIPE_BYTES = 4096  # less than any output: whoever writes it waits for us
# Peak resident memory beyond that of the same work on a hundredth of the keys.
STREAMED_KIB, KEPT_KIB = 4 << 10, 4 * KEYS


def name_of(number):
    return f"model/part-{number % FOLDERS:02}/tensor-of-a-large-model-{number:06}.bin"


def key_of(place, count):
    """As S3 lists them: in the order of their bytes."""
    each = count // FOLDERS
    return name_of(place % each * FOLDERS + place // each)


class Listing(socketserver.StreamRequestHandler):
    """ListObjectsV2 of a bucket whose name is the count of its keys, and their (equal) bytes. It is asked 100,000 times, so it reads no more
    of a request than it needs."""

    def handle(self):
        while request := self.rfile.readline():
            ranged = False
            while (line := self.rfile.readline()) > b"\r\n":
                ranged = ranged or line.lower().startswith(b"range:")
            self.get(urllib.parse.urlsplit(request.split()[1].decode()), ranged)

    def get(self, url, ranged):
        query = dict(urllib.parse.parse_qsl(url.query))
        bucket, _, key = url.path.lstrip("/").partition("/")
        if key:
            return self.answer(b"0123456789abcdef", "206 Partial Content" if ranged else "200 OK", 'ETag: "one"\r\nContent-Range: bytes 0-15/16')
        begin = int(query.get("continuation-token", "0"))
        end, count = min(begin + PAGE, int(bucket)), int(bucket)
        rows = "".join(f"<Contents><Key>{key_of(i, count)}</Key><LastModified>2026-11-21T00:00:00.000Z</LastModified>"
                       f"<ETag>&quot;one&quot;</ETag><Size>16</Size><StorageClass>STANDARD</StorageClass></Contents>" for i in range(begin, end))
        more = f"<IsTruncated>true</IsTruncated><NextContinuationToken>{end}</NextContinuationToken>" if end < count else "<IsTruncated>false</IsTruncated>"
        text = f'<?xml version="1.0" encoding="UTF-8"?><ListBucketResult><Name>{bucket}</Name>{more}{rows}</ListBucketResult>'
        self.answer(text.encode(), "200 OK", "Content-Type: application/xml")

    def answer(self, body, status, headers):
        self.wfile.write(f"HTTP/1.1 {status}\r\n{headers}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)


def start_listing():
    server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Listing)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server, {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_REGION": "us-east-1",
                    "AWS_ENDPOINT_URL": f"http://127.0.0.1:{server.server_address[1]}"}


def high_water_kib(pid):
    """VmHWM, which starts over with the program; that of getrusage() would be ours."""
    try:
        with open(f"/proc/{pid}/status") as file:
            return max([int(line.split()[1]) for line in file if line.startswith("VmHWM")], default=0)
    except OSError:
        return 0


def peak_kib(h, *arguments, env=None):
    """(largest resident memory, output) of a sluice that ends well. It cannot end before its output is taken, which the pipe does not
    hold, and at that time has read and planned everything."""
    read_fd, write_fd = os.pipe()
    fcntl.fcntl(read_fd, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    process = subprocess.Popen([h.program, *arguments], env=h.environment(env), stdin=subprocess.DEVNULL, stdout=write_fd)
    os.close(write_fd)
    out, peak = [], 0
    while True:
        select.select([read_fd], [], [])
        peak = max(peak, high_water_kib(process.pid))
        piece = os.read(read_fd, PIPE_BYTES)
        if not piece:
            break
        out.append(piece)
    text = b"".join(out).decode()
    os.close(read_fd)
    assert process.wait() == 0, f"exit code {process.returncode}: {text[-300:]}"
    assert len(text) > PIPE_BYTES and peak, f"{len(text)} bytes, {peak} KiB"
    return peak, text


def compare(h, few, many, env):
    """Memory of picking some of the keys, and of planning all of them, beside that of a hundredth."""
    notes = []
    for what, flags, bound in (("some", ["--set", "source.include=*/tensor-of-a-large-model-000??7.bin"], STREAMED_KIB), ("all", [], KEPT_KIB)):
        small, _ = peak_kib(h, "plan", few, "--json", *flags, env=env)
        large, out = peak_kib(h, "plan", many, "--json", *flags, env=env)
        wanted = KEYS if what == "all" else PICKED
        found = out.count('"etag"')
        assert found == wanted, f"{found} objects, not {wanted}"
        assert large - small <= bound, f"{what}: {large} KiB for {KEYS} keys, {small} for {KEYS // 100}"
        notes.append(f"{what}: {small >> 10} to {large >> 10} MiB")
    return "; ".join(notes)


@check()
def a_listing_of_many_keys_streams(h):
    """100,000 keys on S3: those that are left out cost no memory, those that are taken at most 4 KiB each."""
    server, env = start_listing()
    try:
        return compare(h, f"s3://{KEYS // 100}/model/", f"s3://{KEYS}/model/", env)
    finally:
        server.shutdown()


@check()
def a_directory_of_many_files_streams(h):
    """100,000 files below a directory: the same."""
    roots = {}
    for count in (KEYS // 100, KEYS):
        roots[count] = h.fresh(f"many-{count}")
        for folder in range(FOLDERS):
            os.makedirs(os.path.join(roots[count], "model", f"part-{folder:02}"), exist_ok=True)
        for number in range(count):
            with open(os.path.join(roots[count], name_of(number)), "wb", buffering=0) as file:
                file.write(b"0123456789abcdef")
    note = compare(h, roots[KEYS // 100] + "/", roots[KEYS] + "/", None)
    for root in roots.values():
        h.remove(root)
    return note
