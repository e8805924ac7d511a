"""What the checks need around the cluster: a store that pods reach, what lies in it, and a line slow enough to cut."""
import os
import secrets
import selectors
import socket
import threading
import time

from cluster import ADDRESS, Cluster, secret
from harness import free_port, wait_for
from s3client import S3
from servers import versitygw_program

BUCKET = "models"


def port_open(address, port):
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex((address, port)) == 0


class Store(S3):
    """versitygw on the machine's end of the pods' network."""

    def __init__(self, h):
        super().__init__(free_port(), "e2eaccess", secrets.token_hex(16), host=ADDRESS)
        env = dict(os.environ, ROOT_ACCESS_KEY=self.access, ROOT_SECRET_KEY=self.secret)
        root = h.directory("store")
        command = [versitygw_program(), "--port", f"{ADDRESS}:{self.port}", "--region", self.region, "--quiet",
                   "--keep-alive", "posix", root]
        self.process = h.spawn("store", command, env=env, cwd=h.disk)
        wait_for("the store", lambda: port_open(ADDRESS, self.port))
        self.make_bucket(BUCKET)

    @property
    def address(self):
        """As pods name it."""
        return f"http://store.test:{self.port}"

    def credentials(self, name="store", **other):
        """The Secret that a pod's environment comes from."""
        values = {"AWS_ACCESS_KEY_ID": self.access, "AWS_SECRET_ACCESS_KEY": self.secret}
        return secret(name, {**values, **other})


class SlowLine:
    """A port that forwards to another, at no more than some bytes a second in all, and counts what came back."""

    def __init__(self, store, bytes_per_second):
        self.target, self.region, self.rate = (store.host, store.port), store.region, bytes_per_second
        self.bytes = 0
        self.began = time.monotonic()
        self.listener = socket.create_server((ADDRESS, 0))
        self.port = self.listener.getsockname()[1]
        self.lock = threading.Lock()
        threading.Thread(target=self.accept, daemon=True).start()

    @property
    def address(self):
        return f"http://store.test:{self.port}"

    def accept(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self.carry, args=(client,), daemon=True).start()

    def carry(self, client):
        """Both directions until one side closes."""
        with client, socket.create_connection(self.target) as server, selectors.DefaultSelector() as waiting:
            waiting.register(client, selectors.EVENT_READ, server)
            waiting.register(server, selectors.EVENT_READ, client)
            try:
                while True:
                    for key, _ in waiting.select(60):
                        data = key.fileobj.recv(65536)
                        if not data:
                            return
                        key.data.sendall(data)
                        if key.fileobj is server:
                            self.pace(len(data))
            except OSError:
                return

    def pace(self, count):
        """Sleep while the bytes so far are ahead of the clock."""
        with self.lock:
            self.bytes += count
            ahead = self.bytes / self.rate - (time.monotonic() - self.began)
            # What was not used while nobody asked is not there for the next one.
            self.began -= min(ahead, 0)
        if ahead > 0:
            time.sleep(min(ahead, 5))

    def faster(self, bytes_per_second):
        with self.lock:
            self.rate, self.began = bytes_per_second, time.monotonic() - self.bytes / bytes_per_second

    def close(self):
        self.listener.close()


def make_cluster(archive):
    return lambda h: Cluster(archive)


def store(h):
    return Store(h)


def models(h):
    """minilm/ in the bucket; the model's digests."""
    objects, to = h.fixture("minilm"), h.fixture("store")
    objects.put(to, BUCKET, "minilm/")
    return objects


FIXTURES = {"store": store, "models": models}
