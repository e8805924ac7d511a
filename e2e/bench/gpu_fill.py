#!/usr/bin/env python3
"""What a fill of a GPU costs the host: processor time for a GB, against the tests' driver, whose copies take their time and move nothing.

    e2e/bench/gpu_fill.py [--program build/sluice] [--mib 2048] [--rounds 5] [--link 55000] [--threads]

A daemon loads a model of safetensors from nginx on this machine, and from a file in memory, onto a GPU that is not there: bytes are received, or
read, into pinned memory, and the driver is asked for copies. One load goes before, so that memory is there. In turn with each load
`limit` receives the same bytes into memory that is there and does nothing else, over as many connections: the floor of any program. One line of JSON a row:
[median, least, most] of processor seconds for a GB, and of GB/s. The goal is 0.35 for HTTP. Nothing else should run on the machine; rates mean
nothing, since server and daemon share it.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path.insert(0, os.path.dirname(HERE))
from checks_serve import Node  # noqa: E402
from harness import CACHE, Harness, wait_for  # noqa: E402
from servers import Nginx  # noqa: E402

TICK = os.sysconf("SC_CLK_TCK")
RANGE_BYTES = 8 << 20


def write_model(path, size):
    """Tensors of 32 MiB, as a decoder has them."""
    side, count = 4096, max(1, size >> 25)
    each = side * side * 2
    head = json.dumps({f"layers.{i}.weight": {"dtype": "BF16", "shape": [side, side], "data_offsets": [i * each, (i + 1) * each]}
                       for i in range(count)}).encode()
    head += b" " * (-len(head) % 8)
    block = os.urandom(each)
    with open(path, "wb") as file:
        file.write(len(head).to_bytes(8, "little") + head)
        for _ in range(count):
            file.write(block)
    return os.path.getsize(path)


def cpu_of(pid, thread=None):
    """Processor seconds of a process, or of one of its threads."""
    with open(f"/proc/{pid}/stat" if thread is None else f"/proc/{pid}/task/{thread}/stat", encoding="utf-8") as file:
        fields = file.read().rsplit(") ", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICK


def threads_of(pid):
    """{name: processor seconds} of those that live."""
    found = {}
    for thread in os.listdir(f"/proc/{pid}/task"):
        try:
            with open(f"/proc/{pid}/task/{thread}/comm", encoding="utf-8") as file:
                name = file.read().strip()
            found[name] = found.get(name, 0) + cpu_of(pid, thread)
        except FileNotFoundError:  # it has ended
            continue
    return found


class Fill:
    def __init__(self, h, link):
        self.h, self.node = h, Node(h)
        self.node.configure(f"pool: {{socket: {self.node.place}/pool.sock, gpuWarmSeconds: 600}}\n", budget="1GiB")
        self.node.start(env={"LD_LIBRARY_PATH": os.path.join(os.path.dirname(h.program), "tests", "fake_cuda"), "FAKE_CUDA_COPIES": "none",
                             "FAKE_CUDA_LINK_MBPS": str(link), "FAKE_CUDA_BYTES": str(64 << 30)})

    def load(self, uri, size, connections):
        """(processor seconds for a GB, GB/s, by thread)"""
        pid = self.node.process.pid
        before, begin, threads = cpu_of(pid), time.monotonic(), threads_of(pid)
        more = f"readers: {{connections: {connections}}}\n" if connections else ""
        status, answer = self.node.ask("POST", "/v1/loads", f"""apiVersion: sluice/v1alpha1
kind: Model
metadata: {{name: filled}}
source: {{uri: "{uri}"}}
{more}sink: {{pool: {{device: "cuda:0"}}}}
""")
        assert status == 202, answer
        wait_for("'filled' ended", lambda: self.node.model("filled").get("state") in ("ready", "failed"), 120)
        seconds, cpu = time.monotonic() - begin, cpu_of(pid) - before
        found = self.node.model("filled")
        assert found["state"] == "ready", found
        after = threads_of(pid)
        wait_for("'filled' free", lambda: self.node.ask("DELETE", "/v1/models/filled")[0] in (200, 404), 30)
        return cpu / size * 1e9, size / seconds / 1e9, {name: round(after[name] - threads.get(name, 0), 2) for name in after}


def limit(program, url, size, connections):
    done = subprocess.run([program, str(connections), str(RANGE_BYTES)], input=f"{size} {url}\n", capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    return found["cpu"] / size * 1e9, size / found["seconds"] / 1e9, {}


def told(found):
    return {"cpu_s_per_gb": [round(pick([one[0] for one in found]), 3) for pick in (statistics.median, min, max)],
            "gb_per_s": [round(pick([one[1] for one in found]), 2) for pick in (statistics.median, min, max)]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default=os.path.join(ROOT, "build", "sluice"))
    parser.add_argument("--mib", type=int, default=2048)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--link", type=int, default=55000, help="MB/s")
    parser.add_argument("--connections", type=int, default=0, help="of sluice and of limit; 0: sluice decides, and limit has 8")
    parser.add_argument("--threads", action="store_true", help="processor seconds of each kind of thread, too")
    wanted = parser.parse_args()
    tool = os.path.join(CACHE, "bench", "limit")
    os.makedirs(os.path.dirname(tool), exist_ok=True)
    subprocess.run(["cc", "-O2", "-pthread", "-o", tool, os.path.join(HERE, "limit.c"), "-lssl", "-lcrypto"], check=True)
    h = Harness(wanted.program, base="/dev/shm")
    try:
        nginx, fill = Nginx(h), Fill(h, wanted.link)
        path = os.path.join(nginx.root, "m.safetensors")
        size, url = write_model(path, wanted.mib << 20), nginx.http + "/m.safetensors"
        works = {"fill from HTTP": lambda: fill.load(url, size, wanted.connections),
                 "limit from HTTP": lambda: limit(tool, url, size, wanted.connections or 8),
                 "fill from a file": lambda: fill.load(path, size, wanted.connections)}
        found = {what: [] for what in works}
        fill.load(url, size, wanted.connections)
        for _ in range(wanted.rounds):
            for what, work in works.items():
                found[what].append(work())
                print(what, *(round(number, 3) for number in found[what][-1][:2]), *found[what][-1][2:] if wanted.threads else (),
                      file=sys.stderr, flush=True)
        for what, each in found.items():
            print(json.dumps({"row": what, "mib": wanted.mib, "rounds": wanted.rounds, **told(each)}), flush=True)
    finally:
        h.close()


if __name__ == "__main__":
    main()
