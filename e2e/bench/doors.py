#!/usr/bin/env python3
"""The Python doors beside their originals, interleaved, in one run: from a tmpfs, over HTTP (nginx) and from S3 (versitygw).

    e2e/torch2.py                                              once: torch 2 and the peers
    e2e/bench/doors.py [--mib 256] [--rounds 5] [--places tmpfs,http,s3] [--library build/lib/libsluice.so.0] >doors.json
    e2e/bench/doors.py --table doors.json                      the same as a table for docs/python.md

Each trial is a process of its own: a whole model of 16 tensors, one tensor, or the first hundredth of one tensor's rows, each byte touched.
`sluice` is sluice.load, `sluice.stream` gives tensors as they come, `sluice.unchecked` is sluice.load with verify="off", for those beside it that check nothing.
Trials are told on the standard error as they end, then one line of JSON a row: seconds from after the imports to the last tensor, seconds to the first, bytes of tensors, seconds of processor time,
peak memory beyond the imports, bytes that nginx or the store sent; of each [median, least, most]. Every other round runs backwards. It takes some
three seconds a trial, twenty minutes in all. Figures are of the machine they were taken on, which should do nothing else.
"""
import argparse
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path.insert(0, os.path.dirname(HERE))
import torch2  # noqa: E402
from s3client import S3  # noqa: E402
from servers import versitygw_program  # noqa: E402

CLIENT = os.path.join(HERE, "door_client.py")
# What is tried: (client, file, places, works).
ROWS = (
    ("sluice", "m.safetensors", "tmpfs http s3", "whole tensor slice"), ("safetensors", "m.safetensors", "tmpfs", "whole tensor slice"),
    ("runai", "m.safetensors", "tmpfs s3", "whole"), ("fastsafetensors", "m.safetensors", "tmpfs", "whole tensor"),
    ("sluice tensors", "m.tensors", "tmpfs http s3", "whole tensor slice"), ("tensorizer", "m.tensors", "tmpfs http s3", "whole tensor"),
    ("sluice pt", "m.pt", "tmpfs http s3", "whole tensor slice"), ("torch.load", "m.pt", "tmpfs", "whole tensor slice"),
    ("zipslicer", "m.pt", "tmpfs", "whole tensor"), ("sluice.stream", "m.safetensors", "tmpfs http s3", "whole"),
    ("sluice.stream tensors", "m.tensors", "tmpfs http s3", "whole"), ("sluice.unchecked tensors", "m.tensors", "tmpfs http s3", "whole tensor"),
    ("sluice.unchecked pt", "m.pt", "tmpfs", "whole tensor"),
)
MAKE = """import sys, torch, safetensors.torch, tensorizer
rows = int(sys.argv[2]) * (1 << 20) // 16 // 4096
made = {f"layer.{i}": torch.randint(-1 << 30, 1 << 30, (rows, 1024), dtype=torch.int32) for i in range(16)}
safetensors.torch.save_file(made, sys.argv[1] + "/m.safetensors")
torch.save(made, sys.argv[1] + "/m.pt")
writer = tensorizer.TensorSerializer(sys.argv[1] + "/m.tensors"); writer.write_state_dict(made); writer.close()
"""
NGINX = """daemon off; pid %(place)s/nginx.pid; error_log stderr crit; worker_processes 2; events {}
http { log_format sent '$bytes_sent'; access_log %(place)s/sent sent; sendfile on; client_body_temp_path %(place)s/t1;
proxy_temp_path %(place)s/t2; fastcgi_temp_path %(place)s/t3; uwsgi_temp_path %(place)s/t4; scgi_temp_path %(place)s/t5;
server { listen 127.0.0.1:%(port)d; root %(root)s; } }
"""


class Server:
    """nginx over a folder, which tells what it has sent."""

    def __init__(self, root, place):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.log, config = os.path.join(place, "sent"), os.path.join(place, "nginx.conf")
        with open(config, "w") as file:
            file.write("user root;\n" * (os.getuid() == 0) + NGINX % {"place": place, "port": self.port, "root": root})
        self.process = subprocess.Popen([shutil.which("nginx") or "/usr/sbin/nginx", "-c", config])
        while socket.socket().connect_ex(("127.0.0.1", self.port)):
            if self.process.poll() is not None:
                raise SystemExit("nginx did not start")
            time.sleep(0.05)

    def sent(self):
        with open(self.log) as file:
            return sum(int(line) for line in file)


class Store(S3):
    """versitygw over a folder, with the files in a bucket."""

    def __init__(self, root, place):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            super().__init__(probe.getsockname()[1], "doors", "doors-secret")
        command = [versitygw_program(), "--port", f"127.0.0.1:{self.port}", "--region", self.region, "--quiet", "--keep-alive", "posix", place]
        self.process = subprocess.Popen(command, env={**os.environ, "ROOT_ACCESS_KEY": self.access, "ROOT_SECRET_KEY": self.secret},
                                        cwd=place, stdout=subprocess.DEVNULL)
        while socket.socket().connect_ex(("127.0.0.1", self.port)):
            if self.process.poll() is not None:
                raise SystemExit("versitygw did not start")
            time.sleep(0.05)
        self.make_bucket("doors")
        for name in os.listdir(root):
            with open(os.path.join(root, name), "rb") as file:
                self.put("doors", name, file.read())

    def sent(self):
        """What it has written so far, which is answers but for a few bytes."""
        with open(f"/proc/{self.process.pid}/io") as file:
            return next(int(line.split()[1]) for line in file if line.startswith("wchar:"))

    def env(self):
        """Of sluice, of boto3 and tensorizer, and of Run:ai's streamer."""
        return {**super().env(), "AWS_DEFAULT_REGION": self.region, "RUNAI_STREAMER_S3_ENDPOINT": self.endpoint,
                "RUNAI_STREAMER_S3_USE_VIRTUAL_ADDRESSING": "0", "AWS_EC2_METADATA_DISABLED": "true"}


def measure(client, uri, work, env, sender):
    """sender: of what is sent; None: nothing is."""
    before = sender.sent() if sender else 0
    done = subprocess.run([torch2.PYTHON, "-W", "ignore", CLIENT, client, uri, work], capture_output=True, text=True, env=env,
                          stdin=subprocess.DEVNULL, timeout=600)
    if done.returncode:
        return {"error": (done.stderr.strip().splitlines() or ["?"])[-1][:200]}
    found = json.loads(done.stdout.strip().splitlines()[-1])
    return {**found, "sent": sender.sent() - before if sender else 0}


def summary(found):
    errors = [one["error"] for one in found if "error" in one]
    if errors:
        return {"error": errors[0]}
    values = {name: [one[name] for one in found] for name in found[0]}
    return {name: [round(pick(each), 6) for pick in (statistics.median, min, max)] for name, each in values.items()}


def cell(row, name, scale, digits):
    """Median (least to most), of what is scaled so."""
    middle, least, most = (f"{value * scale:.{digits}f}" for value in row[name])
    return middle if least == most else f"{middle} ({least} to {most})"


def table(path):
    """Markdown of what a run printed."""
    with open(path) as file:
        rows = [json.loads(line) for line in file if line.startswith("{")]
    print("| place, work | client | ms | ms to the first tensor | GB/s | CPU s/GB | peak MB | MB fetched |\n| --- | --- | --- | --- | --- | --- | --- | --- |")
    for row in sorted(rows, key=lambda row: (row["place"], row["file"], row["work"], row["client"])):
        head = f"| {row['place']}, {row['file']}, {row['work']} | {row['client'].split(' ')[0]} |"
        if "error" in row:
            print(f"{head} {row['error']} | | | | | |")
            continue
        gigabytes, seconds = row["bytes"][0] / 1e9, row["seconds"][0]
        figures = (cell(row, "seconds", 1e3, 1), cell(row, "first", 1e3, 1), f"{gigabytes / seconds:.2f}", f"{row['cpu'][0] / gigabytes:.2f}",
                   f"{row['peak_bytes'][0] / 1e6:.0f}", f"{row['sent'][0] / 1e6:.1f}" if row["sent"][0] else "")
        print(head, " | ".join(figures), "|")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--places", default="tmpfs,http,s3")
    parser.add_argument("--table", metavar="FILE")
    parser.add_argument("--library", default=os.path.join(ROOT, "build", "lib", "libsluice.so.0"))
    wanted = parser.parse_args()
    if wanted.table:
        return table(wanted.table)
    if not torch2.there():
        raise SystemExit("no environment with torch 2: e2e/torch2.py makes it")
    env = {**os.environ, "SLUICE_LIBRARY": os.path.abspath(wanted.library), "PYTHONPATH": os.path.join(ROOT, "python"),
           "PYTHONDONTWRITEBYTECODE": "1", "SLUICE_WARM_BYTES": str(wanted.mib << 20)}
    with tempfile.TemporaryDirectory(dir="/dev/shm") as root, tempfile.TemporaryDirectory() as place:
        subprocess.run([torch2.PYTHON, "-W", "ignore", "-c", MAKE, root, str(wanted.mib)], check=True)
        os.mkdir(os.path.join(place, "store"))
        server, store = Server(root, place), Store(root, os.path.join(place, "store"))
        env.update(store.env())
        rows = [(client, file, where, work) for client, file, places, works in ROWS for where in places.split()
                if where in wanted.places.split(",") for work in works.split()]
        found = {row: [] for row in rows}
        starts = {"tmpfs": root, "http": f"http://127.0.0.1:{server.port}", "s3": "s3://doors"}
        try:
            senders = {"http": server, "s3": store}
            for number in range(wanted.rounds):
                for client, file, where, work in rows[:: -1 if number % 2 else 1]:
                    one = measure(client, f"{starts[where]}/{file}", work, env, senders.get(where))
                    found[client, file, where, work].append(one)
                    print(client, where, work, one, file=sys.stderr, flush=True)
        finally:
            for row in rows:  # what was measured, also if the run was ended
                if found[row]:
                    said = {"client": row[0], "file": row[1], "place": row[2], "work": row[3], "rounds": len(found[row]), **summary(found[row])}
                    print(json.dumps(said), flush=True)
            for process in (server.process, store.process):
                process.terminate()
                process.wait()


if __name__ == "__main__":
    main()
