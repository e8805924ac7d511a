"""The chart's caches: what helm makes of the chart is run by the real nginx, with real stores behind it."""
import concurrent.futures
import glob
import hashlib
import http.client
import http.server
import json
import os
import re
import socket
import socketserver
import struct
import subprocess
import threading

from harness import CACHE, ROOT, Skip, check, fixed, fixture, free_port, need_program, sha256_file, wait_for

ROOMS = ("storage/store", "storage/http", "charts")
SLICE = 8 << 20
SLICES = 6
MODEL = bytes(range(256)) * (SLICES * SLICE // 256 - 3)


@fixture("chart")
def chart(h):
    """helm, as scripts/chart-tools builds it."""
    program = os.path.join(CACHE, "bin", "helm")
    if not os.access(program, os.X_OK):
        done = subprocess.run([os.path.join(ROOT, "scripts", "chart-tools"), "helm"], stdin=subprocess.DEVNULL, capture_output=True)
        if done.returncode:
            raise Skip("no helm, and it cannot be built")
    return program


class Cache:
    """nginx with the file that is in the ConfigMap; of it other paths, and the certificates to trust."""

    def __init__(self, h, helm, store, ca=None, **caches):
        program, self.port = need_program("nginx", "/usr/sbin/nginx"), free_port()
        folder = h.fresh("cache")
        os.makedirs(folder)
        os.chmod(h.memory, 0o755)
        os.chmod(folder, 0o755)
        values = {"caches": {"enabled": True, "stores": [store], "size": "1Gi", "nodes": 1, "port": self.port, "resolver": "127.0.0.1", **caches}}
        done = subprocess.run([helm, "template", "m", os.path.join(ROOT, "charts", "sluice"), "--kube-version", "1.36.0", "--show-only",
                               "templates/caches.yaml", "--values", "-"], input=json.dumps(values), capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        indented = done.stdout.split("  nginx.conf: |\n", 1)[1].split("\n---\n", 1)[0]
        text = re.sub(r"^    ", "", indented, flags=re.MULTILINE).replace(" /cache", f" {folder}")
        text = text.replace(f"listen {self.port}", f"listen 127.0.0.1:{self.port}")
        text = re.sub(r"(trusted_certificate )[^;]+", rf"\g<1>{ca}" if ca else r"\g<0>", text)
        conf = os.path.join(folder, "nginx.conf")
        with open(conf, "w") as file:
            file.write(("user root;\n" if os.getuid() == 0 else "") + text)
        self.name = f"cache-{self.port}"
        self.process = h.serve(self.name, [program, "-e", "stderr", "-p", folder, "-c", conf], self.port)

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    def ask(self, method, path, host, **headers):
        """(status, body) of one request, as any client may make it."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request(method, path, headers={"Host": host, **headers})
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()


def spec(h, uri, cache, more=""):
    """Pinned: a range of a slice each."""
    path = h.fresh("spec") + ".yaml"
    with open(path, "w") as file:
        file.write(f"apiVersion: sluice/v1alpha1\nkind: Model\nmetadata: {{name: m}}\nsource:\n  uri: '{uri}'\n  through: {cache.url}\n{more}"
                   f"verify: {{sidecar: require}}\nsink: {{tmpfs: {{path: {h.fresh()}}}}}\nreaders: {{fixed: '{fixed(4, '8MiB')}'}}\n")
    return path


def published(path):
    with open(path) as file:
        return re.search(r"path: (\S+?)}", file.read())[1]


def put_model(h, folder, name="m.bin"):
    """The model and its sidecar, as plain files."""
    path = os.path.join(folder, name)
    with open(path, "wb") as file:
        file.write(MODEL)
    h.sluice("sign", path, "--range-bytes", str(SLICE)).expect(0)
    return hashlib.sha256(MODEL).hexdigest()


def loaded(h, digest, path, env=None):
    """One load of a spec; how many bytes it had from the store: few, and not none, since it opens objects there."""
    result = h.sluice("load", path, "--json", "--progress", "none", env=env).expect(0).json()
    assert sha256_file(glob.glob(os.path.join(published(path), "*.bin"))[0]) == digest
    assert result["cached"] > len(MODEL) // 2, result
    return result["fetched"] - result["cached"]


@check("chart", "nginx", smoke=True)
def loads_go_by_the_charts_cache(h, chart, nginx):
    """From a store with TLS: the first load brings each slice to the cache once, the second asks the store for its opening alone."""
    digest = put_model(h, nginx.root)
    port = int(nginx.https.rsplit(":", 1)[1])
    cache = Cache(h, chart, {"host": "localhost", "address": "127.0.0.1", "port": port}, ca=nginx.ca)
    uri, more = f"https://localhost:{port}/m.bin", f"  tls: {{caFile: {nginx.ca}}}\n"
    opening = loaded(h, digest, spec(h, uri, cache, more))
    first = nginx.sent_bytes("/m.bin")
    assert first <= len(MODEL) + opening, f"the store sent {first} bytes of {len(MODEL)}, {opening} of them past the cache"
    opening = loaded(h, digest, spec(h, uri, cache, more))
    again = nginx.sent_bytes("/m.bin") - first
    assert again <= opening < len(MODEL) // 2, f"the store sent {again} bytes more, {opening} of them past the cache"
    assert h.log_tail(cache.name) == "", h.log_tail(cache.name)


@check("chart", "nginx")
def four_loads_at_once_are_one_copy(h, chart, nginx):
    """Cold: the store sends one copy, beside what loads have from it themselves."""
    digest = put_model(h, nginx.root, "four.bin")
    port = int(nginx.http.rsplit(":", 1)[1])
    cache = Cache(h, chart, {"host": "127.0.0.1", "port": port, "tls": False})
    specs = [spec(h, f"{nginx.http}/four.bin", cache) for _ in range(4)]
    with concurrent.futures.ThreadPoolExecutor(len(specs)) as pool:
        past = sum(pool.map(lambda path: loaded(h, digest, path), specs))
    sent = nginx.sent_bytes("/four.bin")
    assert sent <= len(MODEL) + past, f"the store sent {sent} bytes of {len(MODEL)}, {past} of them past the cache"
    return f"{sent / len(MODEL):.2f} copies"


@check("chart", "versitygw")
def signatures_pass_the_cache(h, chart, versitygw):
    """S3, with a name that must come to the store as it was signed; a wrong key gets nothing of what the cache has."""
    key = "odd name+ü&/m.bin"
    local = h.directory("signed")
    digest = put_model(h, local)
    versitygw.make_bucket("caches")
    for name in ("m.bin", "m.bin.sluice.json"):
        with open(os.path.join(local, name), "rb") as file:
            versitygw.put("caches", key.removesuffix("m.bin") + name, file.read())
    cache = Cache(h, chart, {"host": "127.0.0.1", "port": versitygw.port, "tls": False})
    uri, env = f"s3://caches/{key}", versitygw.env()
    loaded(h, digest, spec(h, uri, cache), env)
    refused = h.sluice("load", spec(h, uri, cache), env={**env, "AWS_SECRET_ACCESS_KEY": "wrong"})
    refused.expect(3)


@check("chart", "nginx")
def caches_serve_their_stores_alone(h, chart, nginx):
    """Another host gets 421, another method 403, a probe 200; names below a store's belong to it."""
    with open(os.path.join(nginx.root, "alone.bin"), "wb") as file:
        file.write(b"x" * 1000)
    port = int(nginx.http.rsplit(":", 1)[1])
    cache = Cache(h, chart, {"host": "store.internal", "address": "127.0.0.1", "port": port, "tls": False})
    wanted = {("GET", "/alone.bin", "store.internal"): 206, ("GET", "/alone.bin", f"bucket.store.internal:{port}"): 206,
              ("GET", "/alone.bin", "store.internal.evil"): 421, ("GET", "/alone.bin", "notstore.internal"): 421,
              ("GET", "/alone.bin", "127.0.0.1"): 421, ("PUT", "/alone.bin", "store.internal"): 403,
              ("DELETE", "/alone.bin", "store.internal"): 403, ("GET", "/healthz", f"10.0.0.1:{cache.port}"): 200}
    found = {case: cache.ask(*case, Range="bytes=0-9", **{"X-Sluice-Version": "v"})[0] for case in wanted}
    assert found == wanted, found


# ---- names ----------------------------------------------------------------------------------------


class Names(socketserver.ThreadingUDPServer):
    """A DNS server that knows one address, for one second, for all names."""
    address, asked = "127.0.0.1", 0


class Answer(socketserver.BaseRequestHandler):
    def handle(self):
        question, sock = self.request
        end = question.index(b"\0", 12) + 5
        a_record = question[end - 4:end - 2] == b"\0\1"
        self.server.asked += a_record
        head = question[:2] + struct.pack("!HHHHH", 0x8180, 1, int(a_record), 0, 0)
        record = b"\xc0\x0c" + struct.pack("!HHIH", 1, 1, 1, 4) + socket.inet_aton(self.server.address) if a_record else b""
        sock.sendto(head + question[12:end] + record, self.client_address)


class Store(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = self.server.server_address[0].encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@check("chart")
def a_store_that_moves_is_found_again(h, chart):
    """When the time of its address is over the name is asked again, with no restart of the cache."""
    port = free_port()
    servers = [http.server.ThreadingHTTPServer((address, port), Store) for address in ("127.0.0.1", "127.0.0.2")]
    names = Names(("127.0.0.1", 0), Answer)
    for server in [*servers, names]:
        threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        cache = Cache(h, chart, {"host": "store.internal", "port": port, "tls": False}, resolver=f"127.0.0.1:{names.server_address[1]}")
        assert cache.ask("GET", "/", "store.internal") == (200, b"127.0.0.1")
        names.address = "127.0.0.2"
        wait_for("the new address", lambda: cache.ask("GET", "/", "store.internal") == (200, b"127.0.0.2"))
        assert names.asked >= 2
    finally:
        for server in [*servers, names]:
            server.shutdown()
            server.server_close()
