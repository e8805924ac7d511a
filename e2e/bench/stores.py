#!/usr/bin/env python3
"""Stores beside their makers' own clients, interleaved: a hub, its Xet, Google Cloud Storage, Azure Blob storage, an OCI registry.

    python3 -m venv .cache/stores-venv
    .cache/stores-venv/bin/pip install huggingface_hub google-cloud-storage azure-storage-blob blake3 lz4
    GOBIN=$PWD/.cache/bin go install oras.land/oras/cmd/oras@latest
    e2e/bench/stores.py [--mib 512] [--rounds 3] [--stores hub,xet,gs,az,oci] [--sluice build/sluice]

Bytes come from nginx, or from Debian's docker-registry, on this machine, and go into a tmpfs. Random ones, but for Xet weights in bf16, of which it
sends about 0.86; what a file is made of is told by e2e/xet_store.py. Each trial is a process of its own. Printed is a
table: seconds of processor for a GB, of the client alone, its time, its peak memory; of each the median and, in brackets, the least and the most.
Of hubs the requests of one load are counted, too: all that came to the hub, and those of them that resolve a file.
Of clients in Python processor and time count from after the imports. Another program that is busy changes times more than it changes processor time.
"""
import argparse
import base64
import hashlib
import json
import os
import random
import shutil
import signal
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path.insert(0, os.path.dirname(HERE))
import hf_hub  # noqa: E402

VENV, ORAS = os.path.join(ROOT, ".cache/stores-venv/bin/python"), os.path.join(ROOT, ".cache/bin/oras")
NGINX = """daemon off; pid %(place)s/nginx.pid; error_log stderr crit; worker_processes 2; events {}
http { access_log off; sendfile on; default_type application/octet-stream; client_body_temp_path %(place)s/t1;
proxy_temp_path %(place)s/t2; fastcgi_temp_path %(place)s/t3; uwsgi_temp_path %(place)s/t4; scgi_temp_path %(place)s/t5;
map $http_x_ms_range $range { "" $http_range; default $http_x_ms_range; }
server { listen 127.0.0.1:%(port)d; root %(place)s/root;
  location ~ ^/storage/v1/ { default_type application/json; alias %(place)s/root/gs.json; }
  location ~ ^/(download/storage/v1/b/|gs/bucket/|bucket/) { alias %(place)s/root/m.safetensors;
    add_header x-goog-hash crc32c=%(crc)s; add_header x-goog-generation 7; add_header x-goog-stored-content-encoding identity; }
  location /acct/ { proxy_pass http://127.0.0.1:%(port)d/blob/; proxy_buffering off; proxy_set_header Range $range;
    proxy_set_header x-ms-range ""; proxy_http_version 1.1; proxy_set_header Connection ""; }
  location ~ ^/blob/ { alias %(place)s/root/m.safetensors; add_header x-ms-blob-content-md5 %(md5)s; add_header x-ms-blob-type BlockBlob; }
} }
"""
REGISTRY = "version: 0.1\nstorage: {{filesystem: {{rootdirectory: {root}}}}}\nhttp: {{addr: '127.0.0.1:{port}'}}\nlog: {{level: error}}\n"
# What a client in Python does, between two looks at what it has used; its arguments are the server's URL and a folder.
AROUND = """import json, os, resource, sys, time
url, out = sys.argv[1:3]
%s
begun, before = time.monotonic(), resource.getrusage(resource.RUSAGE_SELF)
%s
took, after = time.monotonic() - begun, resource.getrusage(resource.RUSAGE_SELF)
print(json.dumps([after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime, took, after.ru_maxrss / 1024]))
"""
# Starts a client and looks at it: a process of its own, since what a client inherits counts as its memory.
RUNNER = """import json, os, sys, time
begun, child = time.monotonic(), os.fork()
if child == 0:
    os.dup2(os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT), 1)
    os.dup2(1, 2)
    os.execvp(sys.argv[2], sys.argv[2:])
_, status, used = os.wait4(child, 0)
print(json.dumps([status, [used.ru_utime + used.ru_stime, time.monotonic() - begun, used.ru_maxrss / 1024]]))
"""
PYTHON = {
    "huggingface_hub": ("from huggingface_hub import hf_hub_download", "hf_hub_download('org/name', 'm.safetensors', local_dir=out)"),
    "hf_xet": ("import hf_xet\nfrom huggingface_hub import hf_hub_download", "hf_hub_download('org/xet', 'm.safetensors', local_dir=out)"),
    "google-cloud-storage": (
        "from google.cloud import storage\nfrom google.auth.credentials import AnonymousCredentials",
        "blob = storage.Client('p', AnonymousCredentials()).bucket('bucket').blob('m.safetensors')\n"
        "blob.download_to_filename(out + '/m.safetensors')"),
    "its transfer_manager": (
        "from google.cloud import storage\nfrom google.cloud.storage import transfer_manager\nfrom google.auth.credentials import AnonymousCredentials",
        "blob = storage.Client('p', AnonymousCredentials()).bucket('bucket').blob('m.safetensors')\n"
        "transfer_manager.download_chunks_concurrently(blob, out + '/m.safetensors', max_workers=4, worker_type='thread')"),
    "azure-storage-blob": (
        "from azure.storage.blob import BlobClient",
        "blob = BlobClient(url + '/acct', 'bucket', 'm.safetensors', credential=None)\n"
        "with open(out + '/m.safetensors', 'wb') as file:\n    blob.download_blob(max_concurrency=4).readinto(file)"),
}


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def start(command, port):
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while socket.socket().connect_ex(("127.0.0.1", port)):
        if process.poll() is not None:
            raise SystemExit(f"{command[0]} did not start")
        time.sleep(0.05)
    return process


def crc32c(path):
    code = "import base64, google_crc32c, sys\nsum = google_crc32c.Checksum()\nsum.update(open(sys.argv[1], 'rb').read())\n" \
           "print(base64.b64encode(sum.digest()).decode())"
    return subprocess.run([VENV, "-c", code, path], check=True, capture_output=True, text=True).stdout.strip()


def header(rows):
    text = json.dumps({"w": {"dtype": "U8", "shape": [rows, 4096], "data_offsets": [0, rows * 4096]}}).encode()
    return len(text).to_bytes(8, "little") + text


def bf16(count):
    """Weights of a normal distribution: their lower bytes are as good as random, their higher ones are not."""
    draw = random.Random(3)
    highs = sorted(struct.pack(">f", draw.gauss(0, 0.02))[0] for _ in range(1 << 16))
    data = bytearray(2 * count)
    data[0::2] = os.urandom(count)
    data[1::2] = os.urandom(count).translate(bytes(highs[128::256]))
    return bytes(data)


class Servers:
    """The file of --mib MiB behind every protocol."""

    def __init__(self, place, mib, stores):
        self.place, self.started = place, []
        root = os.path.join(place, "root")
        os.mkdir(root)
        self.path = os.path.join(root, "m.safetensors")
        rows = mib * (1 << 20) // 4096 - 1
        self.data = header(rows) + os.urandom(rows * 4096)
        with open(self.path, "wb") as file:
            file.write(self.data)
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        crc, md5 = crc32c(self.path), base64.b64encode(hashlib.md5(self.data).digest()).decode()
        with open(os.path.join(root, "gs.json"), "w") as file:
            json.dump({"kind": "storage#object", "bucket": "bucket", "name": "m.safetensors", "size": str(len(self.data)), "generation": "7",
                       "metageneration": "1", "crc32c": crc, "etag": "e", "mediaLink": f"{self.url}/download/storage/v1/b/x?alt=media"}, file)
        config = os.path.join(place, "nginx.conf")
        with open(config, "w") as file:
            file.write("user root;\n" * (os.getuid() == 0) + NGINX % {"place": place, "port": self.port, "crc": crc, "md5": md5})
        self.started.append(start([shutil.which("nginx") or "/usr/sbin/nginx", "-c", config], self.port))
        self.start_hub(root)
        self.start_xet(root, header(rows) + bf16(rows * 2048))
        self.registry = None
        if "oci" in stores:
            self.start_registry()

    def start_hub(self, root):
        self.hub = hf_hub.Hub()
        commit = self.hub.commit("org/name", {"m.safetensors": (self.data, True)})
        folder = os.path.join(root, "org/name", commit)
        os.makedirs(folder)
        os.symlink(self.path, os.path.join(folder, "m.safetensors"))
        self.hub.cdn_url = self.url.replace("127.0.0.1", "localhost")

    def start_xet(self, root, data):
        path, port = os.path.join(self.place, "xet"), free_port()
        with open(path, "wb") as file:
            file.write(data)
        command = [VENV, os.path.join(os.path.dirname(HERE), "xet_store.py"), str(port), root, path, "--xorbs", f"{self.url}/xorbs"]
        self.started.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        told = self.started[-1].stdout.readline()
        if not told:
            raise SystemExit("e2e/xet_store.py did not start")
        self.hub.cas, self.weights = f"http://127.0.0.1:{port}", data
        folder = os.path.join(root, "org/xet", self.hub.commit("org/xet", {"m.safetensors": (data, True, json.loads(told)[path])}))
        os.makedirs(folder)
        os.symlink(path, os.path.join(folder, "m.safetensors"))

    def start_registry(self):
        port, config = free_port(), os.path.join(self.place, "registry.yml")
        with open(config, "w") as file:
            file.write(REGISTRY.format(root=os.path.join(self.place, "registry"), port=port))
        self.started.append(start(["docker-registry", "serve", config], port))
        self.registry = f"127.0.0.1:{port}"
        subprocess.run([ORAS, "push", "--plain-http", f"{self.registry}/org/m:v1", "m.safetensors:application/octet-stream"],
                       cwd=os.path.dirname(self.path), check=True, stdout=subprocess.DEVNULL)

    def stop(self):
        self.hub.stop()
        for process in self.started:
            process.terminate()
            process.wait()


def rows(servers):
    """{store: [(client, command, environment)]}; "OUT" in a command is the folder."""
    google = {"STORAGE_EMULATOR_HOST": servers.url}
    xet = {"HF_ENDPOINT": servers.hub.url, "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    hub = {**xet, "HF_HUB_DISABLE_XET": "1"}
    azure = {"AZURE_STORAGE_CONNECTION_STRING": f"BlobEndpoint={servers.url}/acct;AccountName=acct"}

    def own(uri, *more):
        return [servers.sluice, "load", uri, "--to", "OUT/m", "-q", *more]

    def python(name):
        return [VENV, "-W", "ignore", "-c", AROUND % PYTHON[name], servers.url, "OUT"]

    off = ("--set", "verify.hashes=off")
    return {
        "hub": [("sluice, SHA-256", own("hf://org/name"), hub), ("sluice, no hash", own("hf://org/name", *off), hub),
                ("huggingface_hub", python("huggingface_hub"), hub)],
        "xet": [("sluice, Xet's hash", own("hf://org/xet", "--set", "source.hf.xet=on"), xet),
                ("sluice by links, SHA-256", own("hf://org/xet", "--set", "source.hf.xet=off"), xet), ("hf_xet", python("hf_xet"), xet)],
        "gs": [("sluice, CRC32C", own("gs://bucket/m.safetensors", "--set", "source.gs.anonymous=true"), google),
               ("google-cloud-storage", python("google-cloud-storage"), google), ("its transfer_manager", python("its transfer_manager"), google)],
        "az": [("sluice, MD5", own("az://bucket/m.safetensors", "--set", "source.az.anonymous=true"), azure),
               ("sluice, no hash", own("az://bucket/m.safetensors", "--set", "source.az.anonymous=true", *off), azure),
               ("azure-storage-blob", python("azure-storage-blob"), {})],
        "oci": [("sluice, SHA-256", own(f"oci://{servers.registry}/org/m:v1"), {}), ("sluice, no hash", own(f"oci://{servers.registry}/org/m:v1", *off), {}),
                ("oras", [ORAS, "pull", "--plain-http", "--no-tty", "-o", "OUT", f"{servers.registry}/org/m:v1"], {})],
    }


def trial(command, env, data):
    """[seconds of processor, seconds, MiB], or why not."""
    out = tempfile.mkdtemp(prefix="sluice-stores-", dir="/dev/shm")
    try:
        home = {"HOME": out, "PATH": os.environ["PATH"], "LANG": "C.UTF-8"}
        said = os.path.join(out, "said")
        done = subprocess.run([sys.executable, "-S", "-c", RUNNER, said, *(word.replace("OUT", out) for word in command)],
                              env={**home, **env}, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True)
        status, used = json.loads(done.stdout)
        with open(said) as file:
            text = file.read().strip().splitlines() or ["?"]
        if status:
            return text[-1][:300]
        return check(out, data) or (json.loads(text[-1]) if VENV in command else used)
    finally:
        shutil.rmtree(out)


def check(out, data):
    for folder, _, names in os.walk(out):
        if "m.safetensors" in names:
            with open(os.path.join(folder, "m.safetensors"), "rb") as file:
                return None if file.read() == data else "other bytes"
    return "no file"


def cell(values, form):
    return f"{statistics.median(values):{form}} ({min(values):{form}} to {max(values):{form}})"


def tell(found, gigabytes):
    print("| store | client | CPU s/GB | wall s | peak MiB |\n| --- | --- | --- | --- | --- |")
    for (store, client), trials in found.items():
        good = [one for one in trials if not isinstance(one, str)]
        if not good:
            print(f"| {store} | {client} | failed: {trials[0]} | | |")
            continue
        cpu, took, memory = zip(*good)
        print(f"| {store} | {client} | {cell([one / gigabytes for one in cpu], '.2f')} | {cell(took, '.2f')} | {statistics.median(memory):.0f} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--stores", default="hub,xet,gs,az,oci")
    parser.add_argument("--sluice", default=os.path.join(ROOT, "build/sluice"))
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that nothing stays behind
    place = tempfile.mkdtemp(prefix="sluice-stores-", dir="/dev/shm")
    servers, found, asked = None, {}, {}
    try:
        servers = Servers(place, args.mib, args.stores.split(","))
        servers.sluice = os.path.abspath(args.sluice)
        for number in range(args.rounds):
            for store in args.stores.split(","):
                for client, command, env in rows(servers)[store]:
                    before = len(servers.hub.requests)
                    one = trial(command, env, servers.weights if store == "xet" else servers.data)
                    if store in ("hub", "xet"):
                        asked[client] = servers.hub.requests[before:]
                    found.setdefault((store, client), []).append(one)
                    print(f"round {number + 1}: {store}, {client}: {one}", file=sys.stderr, flush=True)
        tell(found, len(servers.data) / 1e9)
        for client, requests in asked.items():
            print(f"{client}: {len(requests)} requests to the hub, {sum('/resolve/' in line for line in requests)} of them to resolve a file")
    finally:
        if servers:
            servers.stop()
        shutil.rmtree(place)


if __name__ == "__main__":
    main()
