"""The same bytes by a BitTorrent swarm, as one would do it with aria2: a torrent, a tracker, one that has all, and all others."""
import hashlib
import http.server
import os
import sys
import urllib.parse

PIECE_BYTES = 1 << 20
TRACKER_PORT, PEER_PORT = 6900, 6881


def bencoded(value):
    if isinstance(value, int):
        return b"i%de" % value
    if isinstance(value, list):
        return b"l" + b"".join(map(bencoded, value)) + b"e"
    if isinstance(value, dict):
        return b"d" + b"".join(bencoded(key) + bencoded(value[key]) for key in sorted(value)) + b"e"
    text = value if isinstance(value, bytes) else value.encode()
    return b"%d:%s" % (len(text), text)


def write_torrent(of, to, tracker):
    with open(of, "rb") as file:
        data = file.read()
    pieces = b"".join(hashlib.sha1(data[at:at + PIECE_BYTES]).digest() for at in range(0, len(data), PIECE_BYTES))
    info = {"length": len(data), "name": os.path.basename(of), "piece length": PIECE_BYTES, "pieces": pieces}
    with open(to, "wb") as file:
        file.write(bencoded({"announce": f"http://{tracker}:{TRACKER_PORT}/announce", "info": info}))


def command(torrent, folder, done=None):
    """aria2 as it comes, without what looks for peers in the internet; done: what it runs when all is there."""
    return ["aria2c", "--quiet", "--no-conf", "--dir", folder, "--enable-dht=false", "--enable-dht6=false", "--disable-ipv6",
            f"--listen-port={PEER_PORT}", "--file-allocation=none", "--bt-max-peers=0", "--seed-ratio=0", "--check-integrity=true",
            "--bt-request-peer-speed-limit=1000M", *([f"--on-bt-download-complete={done}"] if done else []), torrent]


class Tracker(http.server.BaseHTTPRequestHandler):
    """Who is there: addresses of all that asked."""

    peers = {}

    def do_GET(self):
        given = urllib.parse.parse_qs(urllib.parse.urlsplit(self.path).query, encoding="latin-1")
        self.peers[self.client_address[0]] = int(given["port"][0])
        listed = [{"ip": ip, "peer id": b"-" * 20, "port": port} for ip, port in self.peers.items() if ip != self.client_address[0]]
        body = bencoded({"interval": 2, "min interval": 2, "peers": listed})
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


if __name__ == "__main__":
    http.server.ThreadingHTTPServer((sys.argv[1], TRACKER_PORT), Tracker).serve_forever()
