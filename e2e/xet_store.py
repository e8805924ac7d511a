#!/usr/bin/env python3
"""A content store of Xet over files: what the hub's own Xet client and sluice alike read from.

    PYTHON e2e/xet_store.py PORT FOLDER [--xorbs URL] [--xorb-bytes N] FILE …

Prints a line of JSON, {FILE: its Xet hash}, when it answers. Chunks of 8 to 128 KiB are kept as LZ4 frames, grouped by bytes where that is
shorter, in xorbs of at most 60 MiB (--xorb-bytes) below FOLDER/xorbs, which another server may give out (--xorbs). A link is good for exactly the
range that it was given for, as the real ones are. A question needs a token. PYTHON has the packages blake3 and lz4.
"""
import argparse
import bisect
import hashlib
import http.server
import json
import os
import random
import socketserver
import sys
import urllib.parse

import blake3
import lz4.frame

DATA_KEY = bytes.fromhex("6697f5775b9550de3135cbaca597181c9de421109beb2b58b4d0b04b93adf229")
NODE_KEY = bytes.fromhex("017ec5c7a5472996fd946666b48a02e65ddd536f37c76dd2f86352e64a53713f")
CHUNK_LEAST, CHUNK_MOST = 8 << 10, 128 << 10
TOKEN = "xet-s3cret"  # what e2e/hf_hub.py gives


def text_of(digest):
    return "".join(digest[at:at + 8][::-1].hex() for at in range(0, 32, 8))


def root(nodes):
    """Of [(hash, bytes)]: groups of 2 to 9 that end where a hash says so, level by level."""
    while len(nodes) > 1:
        level, at = [], 0
        while at < len(nodes):
            end = min(at + 9, len(nodes))
            for i in range(at + 2, end):
                if int.from_bytes(nodes[i][0][24:], "little") % 4 == 0:
                    end = i + 1
                    break
            lines = "".join(f"{text_of(one)} : {size}\n" for one, size in nodes[at:end]).encode()
            level.append((blake3.blake3(lines, key=NODE_KEY).digest(), sum(size for _, size in nodes[at:end])))
            at = end
        nodes = level
    return nodes[0][0]


def packed(chunk):
    """A chunk as xorbs hold it: its head of eight bytes, and the data in the shortest way."""
    grouped = b"".join(chunk[i::4] for i in range(4))
    ways = [(len(chunk), 0, chunk)]
    for scheme, data in ((1, chunk), (2, grouped)):
        frame = lz4.frame.compress(data, block_size=lz4.frame.BLOCKSIZE_MAX256KB, block_linked=False, store_size=False)
        ways.append((len(frame), scheme, frame))
    size, scheme, data = min(ways, key=lambda way: way[:2])
    return bytes([0]) + size.to_bytes(3, "little") + bytes([scheme]) + len(chunk).to_bytes(3, "little") + data


class File:
    """Terms of a file, one a xorb: (xorb's hash, where each chunk begins in the file, where in the xorb)."""

    def __init__(self, path, folder, xorb_bytes):
        with open(path, "rb") as file:
            data = file.read()
        self.bytes, self.terms, nodes = len(data), [], []
        sizes, at = random.Random(7), 0
        while at < len(data):
            raw, places, xorb, own = [], [], bytearray(), []
            while at < len(data) and len(xorb) < xorb_bytes:
                chunk = data[at:at + min(CHUNK_MOST, max(CHUNK_LEAST, int(sizes.expovariate(1 / (62 << 10)))))]
                raw.append(at)
                places.append(len(xorb))
                own.append((blake3.blake3(chunk, key=DATA_KEY).digest(), len(chunk)))
                xorb += packed(chunk)
                at += len(chunk)
            name = text_of(root(own))
            with open(os.path.join(folder, name), "wb") as file:
                file.write(xorb)
            self.terms.append((name, raw + [at], places + [len(xorb)]))
            nodes += own
        self.hash = text_of(blake3.blake3(root(nodes), key=bytes(32)).digest()) if nodes else "0" * 64


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def answer(self, status, body=b"", headers=()):
        self.send_response(status)
        for name, value in dict(headers).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        url = urllib.parse.urlsplit(self.path)
        parts = url.path.strip("/").split("/")
        if parts[:2] == ["v1", "reconstructions"] and len(parts) == 3:
            return self.reconstruct(self.server.files.get(parts[2]))
        if parts[0] == "xorbs" and len(parts) == 2:
            return self.xorb(parts[1], urllib.parse.parse_qs(url.query))
        return self.answer(404)  # the second version of questions among it, whereupon clients ask in the first

    def asked(self, size):
        """[begin, end), or None."""
        text = self.headers.get("Range")
        if not text:
            return 0, size
        first, _, last = text.removeprefix("bytes=").partition("-")
        begin, end = int(first), min(int(last) + 1 if last else size, size)
        return (begin, end) if begin < end else None

    def reconstruct(self, file):
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            return self.answer(401)
        if not file:
            return self.answer(404)
        wanted = self.asked(file.bytes)
        if not wanted:
            return self.answer(416)
        terms, info, skip = [], {}, None
        for name, raw, places in file.terms:
            if raw[-1] <= wanted[0] or raw[0] >= wanted[1]:
                continue
            first = max(bisect.bisect_right(raw, wanted[0]) - 1, 0)
            end = min(bisect.bisect_left(raw, wanted[1]), len(raw) - 1)
            skip = wanted[0] - raw[first] if skip is None else skip
            terms.append({"hash": name, "unpacked_length": raw[end] - raw[first], "range": {"start": first, "end": end}})
            begin, last = places[first], places[end] - 1
            info.setdefault(name, []).append({"range": {"start": first, "end": end}, "url_range": {"start": begin, "end": last},
                                              "url": f"{self.server.xorbs}/{name}?{urllib.parse.urlencode(self.server.sign(name, begin, last))}"})
        body = json.dumps({"offset_into_first_range": skip, "terms": terms, "fetch_info": info}).encode()
        return self.answer(200, body, {"Content-Type": "application/json"})

    def xorb(self, name, query):
        text = self.headers.get("Range", "")
        if self.headers.get("Authorization"):
            return self.answer(400, b"a token came along")
        try:
            first, last = (int(number) for number in text.removeprefix("bytes=").split("-"))
        except ValueError:
            return self.answer(403)
        if query != {key: [value] for key, value in self.server.sign(name, first, last).items()}:
            return self.answer(403)
        with open(os.path.join(self.server.folder, name), "rb") as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(first)
            data = file.read(last + 1 - first)
        return self.answer(206, data, {"Content-Range": f"bytes {first}-{first + len(data) - 1}/{size}"})


class Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
    daemon_threads = True
    request_queue_size = 128

    @staticmethod
    def sign(name, begin, last):
        return {"signature": hashlib.sha256(f"s3cret {name} {begin} {last}".encode()).hexdigest()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("port", type=int)
    parser.add_argument("folder")
    parser.add_argument("files", nargs="+")
    parser.add_argument("--xorbs", help="URL of FOLDER/xorbs at another server")
    parser.add_argument("--xorb-bytes", type=int, default=60 << 20)
    args = parser.parse_args()
    server = Server(("127.0.0.1", args.port), Handler)
    server.folder = os.path.join(args.folder, "xorbs")
    server.xorbs = args.xorbs or f"http://127.0.0.1:{args.port}/xorbs"
    os.makedirs(server.folder, exist_ok=True)
    made = {path: File(path, server.folder, args.xorb_bytes) for path in args.files}
    server.files = {file.hash: file for file in made.values()}
    print(json.dumps({path: file.hash for path, file in made.items()}), flush=True)
    server.serve_forever()


if __name__ == "__main__":
    sys.exit(main())
