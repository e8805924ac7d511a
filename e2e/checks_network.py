"""What a load leaves to others: bandwidth and connections, of one process with several loads."""
import hashlib
import http.server
import os
import subprocess
import threading
import time

from harness import Skip, check, processor_seconds, sha256_file, wait_for

ROOMS = ("storage/net", "storage/http", "core/concurrency", "load/reader")
RATE = 10_000_000
CONTENT = os.urandom(24_000_000)
OBJECT = "network.bin"


class Counting(http.server.ThreadingHTTPServer):
    """Serves CONTENT by ranges and counts how often a connection came that was one too many."""
    daemon_threads = True

    def __init__(self, allowed, pause=0.0, address="127.0.0.1", port=0):
        self.lock, self.open, self.allowed, self.excess, self.pause = threading.Lock(), 0, allowed, 0, pause
        self.came = 0
        super().__init__((address, port), Ranges)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def url(self):
        return f"http://127.0.0.1:{self.server_address[1]}/{OBJECT}"

    def count(self, change):
        with self.lock:
            self.open += change

    def welcome(self):
        """The end of an older connection may be heard of later than the beginning of this one."""
        self.came += 1
        self.count(1)
        try:
            wait_for("the end of another connection", lambda: self.open <= self.allowed, 20)
        except AssertionError:
            self.excess += 1


class Ranges(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def setup(self):
        super().setup()
        self.server.welcome()

    def finish(self):
        self.server.count(-1)
        super().finish()

    def do_GET(self):
        first, last = self.headers["Range"].removeprefix("bytes=").split("-")
        body = CONTENT[int(first):int(last) + 1]
        time.sleep(self.server.pause)
        self.send_response(206)
        self.send_header("Content-Range", f"bytes {first}-{int(first) + len(body) - 1}/{len(CONTENT)}")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("ETag", '"one"')
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def spec_of(h, urls):
    """A file with a model for each URL, and where they go."""
    places = [h.fresh() for _ in urls]
    path = os.path.join(h.directory("network-spec"), "models.yaml")
    with open(path, "w") as file:
        for number, (url, to) in enumerate(zip(urls, places)):
            file.write(f"---\napiVersion: sluice/v1alpha1\nkind: Model\nmetadata: {{name: m{number}}}\n"
                       f"source: {{uri: '{url}'}}\nsink: {{tmpfs: {{path: '{to}'}}}}\n")
    return path, places


def published(h, places):
    digests = {sha256_file(os.path.join(to, OBJECT)) for to in places}
    for to in places:
        h.remove(to)
    return len(digests) == 1


def limited(h, nginx, models):
    """(seconds that are allowed, those that they took, those of processors, those without a limit) of loads of one process."""
    with open(os.path.join(nginx.root, OBJECT), "wb") as file:
        file.write(CONTENT)
    path, places = spec_of(h, [f"{nginx.http}/{OBJECT}"] * models)
    free = h.sluice("load", path).expect(0).seconds  # what all but the waiting takes, on this machine now
    assert published(h, places)
    before = processor_seconds()
    run = h.sluice("load", path, "--bandwidth", "10MB/s").expect(0)
    used = processor_seconds() - before
    assert published(h, places)
    return models * len(CONTENT) / RATE, run.seconds, used, free


@check("nginx")
def bandwidth_is_kept(h, nginx):
    """10 MB/s are no more than that, by one load, and by two of a process together; waiting for them costs no CPU."""
    for models in (1, 2):
        allowed, took, used, _ = limited(h, nginx, models)
        assert took >= 0.95 * allowed, f"{models} models in {took:.2f} s, allowed are {allowed:.2f}"
        assert used < 0.5 * took, f"{used:.2f} s of CPU in {took:.2f} s"


@check("nginx", alone=True, late=True)  # it measures time
def bandwidth_is_used(h, nginx):
    """A limit of 10 MB/s is used to within 5 %."""
    for models in (1, 2):
        allowed, took, _, free = limited(h, nginx, models)
        assert took <= 1.05 * allowed + 2 * free + 0.2, f"{models} models in {took:.2f} s, allowed are {allowed:.2f}, without a limit {free:.2f}"


@check()
def connections_per_host_are_kept(h):
    """Three loads of a process have three connections to their host together, wait for each other, and all end."""
    server = Counting(3, pause=0.02)
    path, places = spec_of(h, [server.url()] * 3)
    h.sluice("load", path, "--connections", "8", "--connections-per-host", "3", "--range-bytes", "1MiB").expect(0)
    assert published(h, places)
    assert not server.excess, f"{server.excess} connections too many"
    server.shutdown()


@check()
def loads_of_two_hosts_do_not_wait_in_a_circle(h):
    """One connection to each host and two loads at each: all end, and no connection was one too many."""
    servers = [Counting(1), Counting(1)]
    path, places = spec_of(h, [servers[number % 2].url() for number in range(4)])
    h.sluice("load", path, "--connections", "4", "--connections-per-host", "1", "--range-bytes", "1MiB").expect(0)
    assert published(h, places)
    for server in servers:
        assert not server.excess, f"{server.excess} connections too many"
        server.shutdown()


def load_by_name(h, addresses, port):
    """A load from store.test, which the system's resolver finds at these addresses."""
    hosts, to = os.path.join(h.directory("hosts"), "hosts"), h.fresh()
    with open(hosts, "w") as file:
        file.writelines(f"{address} store.test\n" for address in addresses)
    inside = 'mount --bind "$0" /etc/hosts && exec "$@"'
    if os.geteuid() != 0 or subprocess.run(["unshare", "-m", "sh", "-c", inside, hosts, "true"], capture_output=True).returncode:
        raise Skip("needs a mount namespace of its own for another /etc/hosts")
    done = subprocess.run(["unshare", "-m", "sh", "-c", inside, hosts, h.program, "load", f"http://store.test:{port}/{OBJECT}", "--to", to,
                           "--connections", "8", "--range-bytes", "1MiB", "--progress", "none"],
                          env=h.environment(), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert sha256_file(os.path.join(to, OBJECT)) == hashlib.sha256(CONTENT).hexdigest()
    h.remove(to)


@check()
def all_addresses_of_a_name_are_used(h):
    """Two servers behind one name both get connections; one that is gone, or never was there, costs nothing but its share."""
    first = Counting(99, 0.02, "127.0.0.2")
    port = first.server_address[1]
    try:
        second = Counting(99, 0.02, "127.0.0.3", port)
    except OSError as error:
        raise Skip(f"port {port} of another address: {error}") from error
    load_by_name(h, ["127.0.0.2", "127.0.0.3"], port)
    assert first.came and second.came, f"{first.came} and {second.came} connections"
    second.shutdown()
    second.server_close()
    load_by_name(h, ["127.0.0.3", "127.0.0.4", "127.0.0.2"], port)
    first.shutdown()
    return f"{first.came} and {second.came} connections"
