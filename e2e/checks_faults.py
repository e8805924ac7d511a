"""What must go wrong in the right way: exit codes, kills, signals, small destinations, wrong bytes."""
import functools
import hashlib
import http.server
import os
import random
import re
import shutil
import signal
import subprocess
import threading

from checks_pool import GatedServer
from checks_resilience import journalled
from checks_stores import BUCKET
from harness import CONNECTIONS, Skip, bytes_done, check, free_port, pinned, sha256_file, wait_for
from servers import share

ROOMS = ("storage/net", "storage/file", "storage/http", "storage/s3", "core/sink", "load/reader", "load/publish", "load/load", "tools/cli")
GATED_BYTES = 64 << 20
SOCKETS_BYTES = 12 << 20  # what the two ends of a connection may hold


def nothing_published(to):
    assert not os.path.exists(os.path.join(to, ".sluice", "ready")), "ready exists after a failed load"
    names = [name for name in os.listdir(to) if name != ".sluice"] if os.path.isdir(to) else []
    assert not names, f"a failed load left {names}"


def refused(h, uri, code, *words, env=None, arguments=()):
    to = h.fresh()
    run = h.load(uri, to, "--attempts", "2", "--unreachable-seconds", "0", *arguments, env=env).expect(code, *words)
    nothing_published(to)
    return run


# ---- exit codes -----------------------------------------------------------------------------------

def codes_of_store(h, store, minilm):
    store.make_bucket(BUCKET)
    minilm.put(store, BUCKET, "minilm/")
    uri = f"s3://{BUCKET}/minilm/"
    refused(h, uri, 3, env=dict(store.env(), AWS_SECRET_ACCESS_KEY="wrong"))
    refused(h, uri, 3, env=dict(store.env(), AWS_ACCESS_KEY_ID="NOBODY"))
    refused(h, "s3://no-such-bucket-here/minilm/", 4, "no-such-bucket-here", env=store.env())
    refused(h, "s3://no-such-bucket-here/minilm/a", 4, "no-such-bucket-here", env=store.env())
    refused(h, f"s3://{BUCKET}/minilm/no-such-key", 4, "no-such-key", env=store.env())
    refused(h, f"s3://{BUCKET}/no-such-prefix/", 4, "no-such-prefix", env=store.env())


@check("versitygw", "minilm")
def codes_versitygw(h, store, minilm):
    """Wrong secret, unknown key: 3. Missing bucket, key, prefix: 4."""
    codes_of_store(h, store, minilm)


@check("rgw", "minilm")
def codes_rgw(h, store, minilm):
    """The same at Ceph."""
    codes_of_store(h, store, minilm)


@check("nginx")
def code_missing_url(h, nginx):
    """404: 4."""
    refused(h, nginx.http + "/no-such-file.safetensors", 4, "no-such-file")


@check()
def code_no_network(h):
    """A port that nobody listens on, and a name that does not resolve: 7, after the retries."""
    refused(h, f"http://127.0.0.1:{free_port()}/m.safetensors", 7)
    refused(h, "http://sluice-e2e.invalid/m.safetensors", 7)


@check("nginx", "minilm")
def code_wrong_sha256(h, nginx, minilm):
    """A hash that the user gave and that is not right: 5, and nothing is published."""
    with open(os.path.join(nginx.root, "tokenizer.json"), "wb") as file:
        file.write(open(os.path.join(minilm.directory, "tokenizer.json"), "rb").read())
    spec = os.path.join(h.disk, "wrong.yaml")
    to = h.fresh()
    with open(spec, "w") as file:
        file.write(f"apiVersion: sluice/v1alpha1\nkind: Model\nmetadata: {{name: wrong}}\nsource: {{uri: {nginx.http}/tokenizer.json}}\n"
                   f"verify: {{sha256: {{tokenizer.json: {'0' * 64}}}}}\nsink: {{tmpfs: {{path: {to}}}}}\n")
    h.sluice("load", spec, "--progress", "none").expect(5, minilm.sha256["tokenizer.json"])
    nothing_published(to)


@check("nginx")
def servers_without_ranges_are_read_in_order(h, nginx):
    """nginx that gives no ranges, and Python's own server: 200 with all of it is read in order, with a warning."""
    with open(os.path.join(nginx.root, "ranges.bin"), "wb") as file:
        file.write(os.urandom(40_000_000))
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=nginx.root)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        for base in (nginx.http + "/norange", f"http://127.0.0.1:{server.server_port}"):
            to = h.fresh()
            h.load(base + "/ranges.bin", to).expect(0, "its files are read in order")
            assert sha256_file(os.path.join(to, "ranges.bin")) == sha256_file(os.path.join(nginx.root, "ranges.bin")), base
    finally:
        server.shutdown()
        server.server_close()


@check("nginx")
def folders_of_web_servers_are_listed(h, nginx):
    """`sluice share`, and nginx with autoindex_format json: a folder is loaded by its listing."""
    names = ("config.json", "sub dir/w+1%.bin")
    folder = os.path.join(nginx.root, "listed")
    os.makedirs(os.path.join(folder, "sub dir"))
    for name in names:
        with open(os.path.join(folder, name), "wb") as file:
            file.write(os.urandom(300_000))
    for base in (nginx.http + "/json", share(h, nginx.root)[1]):
        to = h.fresh()
        h.load(base + "/listed/", to).expect(0)
        for name in names:
            assert sha256_file(os.path.join(to, name)) == sha256_file(os.path.join(folder, name)), f"{name} of {base}"


@check("nginx", "minilm")
def code_destination_too_small(h, nginx, minilm):
    """A tmpfs of 8 MiB for a model of 91 MB: 6, before the first byte of it is fetched."""
    if os.getuid():
        raise Skip("needs root to mount a tmpfs")
    mount = h.fresh("small")
    os.mkdir(mount)
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", mount], capture_output=True).returncode:
        raise Skip("may not mount a tmpfs here")
    h.mounts.append(mount)
    path = os.path.join(nginx.root, "room.safetensors")
    shutil.copyfile(os.path.join(minilm.directory, "model.safetensors"), path)
    to = os.path.join(mount, "model")
    before = nginx.sent_bytes("/room.safetensors")
    run = h.load(nginx.http + "/room.safetensors", to).expect(6)
    nothing_published(to)
    wait_for("the log", lambda: nginx.sent_bytes("/room.safetensors") >= before)
    fetched = nginx.sent_bytes("/room.safetensors") - before
    assert fetched < 4 << 20, f"{fetched} bytes were fetched for a destination that cannot hold them"
    return run.err.strip().splitlines()[-1][:160]


@check()
def code_destination_not_writable(h):
    """A destination where nothing can be made: 6; one below a file, which is a slip of the pen: 2."""
    blocker = os.path.join(h.disk, "file")
    open(blocker, "w").close()
    source = os.path.join(h.disk, "one.bin")
    with open(source, "wb") as file:
        file.write(b"x" * 1000)
    h.load(source, os.path.join(blocker, "to")).expect(2, "not a directory")
    h.load(source, "/proc/to").expect(6)


# ---- kills and signals ----------------------------------------------------------------------------

@check("nginx", "medium")
def killed_ten_times(h, nginx, medium):
    """kill -9 at ten moments of a load of 256 MiB; the next one resumes and fetches few bytes twice (by nginx's count)."""
    os.link(medium.path, os.path.join(nginx.root, "killed.safetensors"))
    url, paced = nginx.http + "/paced/killed.safetensors", "/paced/killed.safetensors"
    worst = resumed_most = kills = 0
    for moment in range(10):
        to, sent = h.fresh(), nginx.sent_bytes(paced)
        own = f"127.0.0.1:{free_port()}"
        process = h.start("load", url, "--to", to, "--progress", "none", *pinned("--listen", own, range_bytes=32 << 20))
        there = medium.bytes * (moment + 0.5) / 11
        wait_for("enough bytes", lambda: bytes_done("http://" + own) >= there or process.poll() is not None)
        process.send_signal(signal.SIGKILL)
        kills += process.wait() == -signal.SIGKILL
        result = h.load(url, to, *pinned(range_bytes=32 << 20)).expect(0).json()
        medium.compare(os.path.join(to, "killed.safetensors"))
        h.remove(to)
        wait_for("nginx's log", lambda: not nginx.connections())
        again = nginx.sent_bytes(paced) - sent - medium.bytes
        worst = max(worst, again)
        resumed_most = max(resumed_most, result["resumed"])
    assert kills >= 8, f"only {kills} of 10 loads were still running when killed"
    assert resumed_most > medium.bytes // 2, f"at most {resumed_most} bytes were ever resumed"
    assert worst <= CONNECTIONS * SOCKETS_BYTES, f"{worst} bytes were sent twice"
    return f"{kills} kills; at most {worst / 1e6:.0f} MB of {medium.bytes / 1e6:.0f} sent twice, up to {resumed_most / 1e6:.0f} MB resumed"


@check(smoke=True)
def sigterm_ends_a_load_of_a_silent_server(h):
    """SIGTERM in mid-load, when no byte comes any more: 143 without a wait for the server, nothing is published, and the next
    load goes on with what is there."""
    server, to = GatedServer(GATED_BYTES), h.fresh()
    process = h.start("load", server.url, "--to", to, "--progress", "none", "--stall-seconds", "600", *pinned())
    wait_for("half of it", lambda: journalled(to) >= GATED_BYTES // 4)
    process.send_signal(signal.SIGTERM)
    assert process.wait(180) == 143, process.returncode
    nothing_published(to)
    server.gate.set()
    result = h.load(server.url, to, *pinned()).expect(0).json()
    assert sha256_file(os.path.join(to, "model.safetensors")) == hashlib.sha256(server.data).hexdigest()
    assert result["resumed"] >= GATED_BYTES // 4, f"only {result['resumed']} bytes were resumed"
    server.close()


@check("versitygw", "minilm")
def second_load_is_a_no_op(h, store, minilm):
    """The same version again: nothing read, nothing touched. checks_calls.py counts what it takes."""
    store.make_bucket(BUCKET)
    minilm.put(store, BUCKET, "minilm/")
    to, uri = h.fresh(), f"s3://{BUCKET}/minilm/"
    h.load(uri, to, env=store.env()).expect(0)
    before = os.stat(os.path.join(to, "model.safetensors"))
    result = h.load(uri, to, env=store.env()).expect(0).json()
    assert result["already"] is True and result["fetched"] == 0, result
    after = os.stat(os.path.join(to, "model.safetensors"))
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)


@check("nginx", "minilm")
def two_loads_at_once(h, nginx, minilm):
    """Two into one directory: one loads, the other waits and finds it done."""
    shutil.copyfile(os.path.join(minilm.directory, "model.safetensors"), os.path.join(nginx.root, "both.safetensors"))
    to = h.fresh()
    command = [h.program, "load", nginx.http + "/both.safetensors", "--to", to, "--json", "--progress", "none"]
    both = [subprocess.Popen(command, env=h.environment(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                             stderr=subprocess.PIPE) for _ in range(2)]
    results = [process.communicate(timeout=300) for process in both]
    assert [process.returncode for process in both] == [0, 0], results
    already = sorted(b'"already":true' in out.replace(b" ", b"") for out, _ in results)
    assert already == [False, True], results
    assert sha256_file(os.path.join(to, "both.safetensors")) == minilm.sha256["model.safetensors"]


@check("versitygw")
def another_version_replaces(h, store):
    """An overwritten object is published anew; what the new version lacks is gone; the old stays on failure."""
    store.make_bucket(BUCKET)
    store.put(BUCKET, "change/a.bin", b"one" * 1000)
    store.put(BUCKET, "change/b.bin", b"two" * 1000)
    to, uri = h.fresh(), f"s3://{BUCKET}/change/"
    h.load(uri, to, env=store.env()).expect(0)
    h.load(uri, to, env=dict(store.env(), AWS_SECRET_ACCESS_KEY="wrong")).expect(3)
    assert open(os.path.join(to, "a.bin"), "rb").read() == b"one" * 1000
    store.put(BUCKET, "change/a.bin", b"three" * 1000)
    store.request("DELETE", BUCKET, "change/b.bin")
    h.load(uri, to, env=store.env()).expect(0)
    assert open(os.path.join(to, "a.bin"), "rb").read() == b"three" * 1000
    assert sorted(os.listdir(to)) == [".sluice", "a.bin"], os.listdir(to)


# ---- an adversary ---------------------------------------------------------------------------------

class Liar(http.server.BaseHTTPRequestHandler):
    """Right status, right Content-Range, right length; wrong bytes for every range that does not start at 0."""
    protocol_version = "HTTP/1.1"
    data = b""

    def do_GET(self):
        match = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        total = len(self.data)
        first = int(match.group(1)) if match else 0
        last = min(int(match.group(2)), total - 1) if match and match.group(2) else total - 1
        body = self.data[:last - first + 1] if first else self.data[:last + 1]
        self.send_response(206 if match else 200)
        if match:
            self.send_header("Content-Range", f"bytes {first}-{last}/{total}")
        self.send_header("ETag", '"always-the-same"')
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@check(smoke=True)
def wrong_bytes_are_found(h):
    """A server that answers 206 with the right headers and wrong bytes is found out by the hash: 5."""
    Liar.data = random.Random(1).randbytes(48 << 20)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Liar)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        to, spec = h.fresh(), os.path.join(h.disk, "liar.yaml")
        digest = hashlib.sha256(Liar.data).hexdigest()
        with open(spec, "w") as file:
            file.write(f"apiVersion: sluice/v1alpha1\nkind: Model\nmetadata: {{name: liar}}\n"
                       f"source: {{uri: 'http://127.0.0.1:{server.server_port}/weights.bin'}}\n"
                       f"verify: {{sha256: {{weights.bin: {digest}}}}}\nsink: {{tmpfs: {{path: {to}}}}}\n")
        h.sluice("load", spec, "--progress", "none").expect(5, "weights.bin")
        nothing_published(to)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
