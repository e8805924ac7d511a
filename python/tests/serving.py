"""A server of files in a process of its own, so that whoever counts descriptors counts those of a client alone.

    python3 serving.py DIRECTORY

prints its port. A path below /stalls/ names a file whose answers stop for ever behind the place in the file that comes next, as in
/stalls/40000/m.safetensors; each that stops prints a line. Whatever else comes before the file's name, such as a bucket, is not looked at.
"""
import http.server
import os
import re
import sys


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *words):
        pass

    def head(self):
        parts = self.path.split("?")[0].split("/")
        with open(os.path.join(sys.argv[1], parts[-1]), "rb") as file:
            data = file.read()
        found = re.match(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        begin = int(found[1]) if found else 0
        end = min(int(found[2]) + 1 if found and found[2] else len(data), len(data))
        self.send_response(206 if found else 200)
        for name, value in (("Content-Length", end - begin), ("ETag", '"1"'), ("Accept-Ranges", "bytes")):
            self.send_header(name, str(value))
        if found:
            self.send_header("Content-Range", f"bytes {begin}-{end - 1}/{len(data)}")
        self.end_headers()
        room = max(int(parts[2]) - begin, 0) if parts[1] == "stalls" else end - begin
        return data[begin:end], room

    def do_HEAD(self):
        self.head()

    def do_GET(self):
        body, room = self.head()
        self.wfile.write(body[:room])
        if room < len(body):
            self.wfile.flush()
            print("stalled", flush=True)
            self.connection.recv(1)  # until the client leaves
            self.close_connection = True


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request, client_address):
        pass  # a client that left


if __name__ == "__main__":
    server = Server(("127.0.0.1", 0), Handler)
    print(server.server_address[1], flush=True)
    server.serve_forever()
