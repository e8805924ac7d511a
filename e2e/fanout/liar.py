"""A cache that does not do what it should: it asks the origin once for each slice, as told, and then flips bits, cuts, stalls,
or gives other bytes.

    liar.py ADDRESS PORT ORIGIN WAY
"""
import http.client
import http.server
import sys
import threading
import time

WAYS = ("flip", "cut", "stall", "old", "other", "500")


class Liar(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    origin = way = ""
    kept, lock = {}, threading.Lock()

    def log_message(self, *_):
        pass

    def slice_of_origin(self):
        """Status, headers and body; kept."""
        name = (self.path, self.headers.get("Range"), self.headers.get("X-Sluice-Version"))
        with self.lock:
            if name not in self.kept:
                self.kept[name] = self.ask()
            return self.kept[name]

    def ask(self):
        upstream = http.client.HTTPConnection(self.origin)
        headers = {name: value for name, value in self.headers.items() if name.lower() != "connection"}
        upstream.request("GET", self.path, headers=headers)
        answer = upstream.getresponse()
        body = answer.read()
        upstream.close()
        return answer.status, answer.getheaders(), body

    def do_GET(self):
        status, answered, body = self.slice_of_origin()
        body = bytearray(body)
        if self.way == "flip" and body:
            body[len(body) // 2] ^= 1
        if self.way == "other":
            body = bytearray(len(body))
        if self.way == "stall":
            time.sleep(60)
        status = 500 if self.way == "500" else status
        self.send_response(status)
        for name, value in answered:
            if self.way == "old" and name.lower() == "etag":
                value = '"d41d8cd98f00b204e9800998ecf8427e"'
            if name.lower() in ("content-range", "etag", "last-modified", "content-type") and status < 500:
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        try:
            self.wfile.write(body[:len(body) // 2] if self.way == "cut" else body)
        except OSError:
            self.close_connection = True  # whoever asked has gone
        if self.way == "cut":
            self.close_connection = True


def main():
    address, port, Liar.origin, Liar.way = sys.argv[1:]
    http.server.ThreadingHTTPServer.daemon_threads = True
    http.server.ThreadingHTTPServer((address, int(port)), Liar).serve_forever()


if __name__ == "__main__":
    main()
