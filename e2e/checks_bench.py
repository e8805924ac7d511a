"""sluice bench against real servers, with small models: figures parse, drawings are well-formed, peers are found,
results of many nodes become one table, and the manifests' command lines work as they stand."""
import csv
import glob
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree

from harness import ROOT, Skip, catches_sigterm, check, wait_for

ROOMS = ("tools/bench",)
MODEL_BYTES = 6_000_000
MARKER = '{"sluice_bench":1,'
SMALL = ("--rounds", "2", "--warmups", "0", "--range-bytes", "256KiB,1MiB", "--connections", "1,4", "--peers", "none")


def result_of(run):
    """The only line with the marker."""
    lines = [line for line in run.out.splitlines() if line.startswith(MARKER)]
    assert len(lines) == 1, f"{len(lines)} results: {run.out[:300]}"
    return json.loads(lines[0])


def measured(result, way, settings):
    """Every setting of a way has rates in order."""
    points = [point for point in result["points"] if point["way"] == way]
    assert len(points) == settings, f"{len(points)} points of {way}, not {settings}"
    for point in points:
        assert point["best_bytes_per_second"] >= point["median_bytes_per_second"] >= point["worst_bytes_per_second"] > 0, point
        assert point["runs"] == result["rounds"] and point["failed"] == 0 and point["bytes"] > 0, point
    return points


def empty_place(h):
    """A destination of the check's own, to see that nothing stays behind."""
    to = h.fresh("bench")
    os.mkdir(to)
    return to


def well_formed_svg(path):
    tree = xml.etree.ElementTree.parse(path).getroot()
    assert tree.tag.endswith("}svg"), tree.tag
    with open(path, encoding="utf-8") as file:
        text = file.read()
    assert not re.search(r"<script|href=|url\(|@import", text), "the drawing is not self-contained"
    return tree


def put_model(store, bucket, key):
    store.request("PUT", bucket)
    status, body = store.request("PUT", bucket, key, os.urandom(MODEL_BYTES))
    assert status == 200, body[:200]


@check()
def bench_alone(h):
    """bench --loopback needs nothing else: JSON, CSV and SVG parse, a file is not replaced unasked, nothing stays."""
    to, files = empty_place(h), {kind: os.path.join(h.directory("bench"), f"alone.{kind}") for kind in ("csv", "json", "svg")}
    flags = ["bench", "--loopback", "--bytes", "6MB", "--to", to, *SMALL]
    outputs = ["--csv", files["csv"], "--json-file", files["json"], "--svg", files["svg"]]
    message = os.path.join(h.disk, "bench-message")
    run = h.sluice(*flags, *outputs, "--json", env={"SLUICE_NODE": "alone", "SLUICE_TERMINATION_LOG": message}).expect(0)
    result = result_of(run)
    with open(message) as file:
        assert re.fullmatch(r"ok: '.*' was measured in \d+ s, network [\d.]+ GB/s, sluice [\d.]+ GB/s\n", file.read())
    assert result["node"] == "alone" and result["cpus"] >= 1 and result["memory_bytes"] > 0, result
    measured(result, "network", 4)
    measured(result, "store", 4)
    loads = measured(result, "load", 5)
    assert loads[0]["connections"] == 0 and loads[0]["cpu_seconds_per_gb"] > 0, loads[0]
    with open(files["json"]) as file:
        assert json.loads(file.read()) == result
    with open(files["csv"], newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 13 and {row["node"] for row in rows} == {"alone"}, rows[:2]
    assert abs(float(rows[0]["median_bytes_per_second"]) / loads[0]["median_bytes_per_second"] - 1) < 1e-3
    well_formed_svg(files["svg"])
    assert os.listdir(to) == [], os.listdir(to)
    h.sluice(*flags, *outputs).expect(2, "exists", "--replace")
    h.sluice(*flags, *outputs, "--replace").expect(0, "sluice, as it comes", "share")


@check("versitygw")
def bench_store_with_peers(h, store):
    """A bucket by signed requests, through all three ways; a peer that is in PATH is run without a shell and measured."""
    put_model(store, "bench-peers", "model.bin")
    programs, said = h.directory("peers"), os.path.join(h.disk, "peer-said")
    with open(os.path.join(programs, "s5cmd"), "w") as file:
        file.write('#!/bin/sh\nfor word; do printf "%s\\n" "$word"; last=$word; done > "$SAID"\n'
                   f'head -c {MODEL_BYTES} /dev/zero > "$last"\n')
    with open(os.path.join(programs, "rclone"), "w") as file:
        file.write("#!/bin/sh\necho 'no luck today' >&2\nexit 3\n")
    for name in ("s5cmd", "rclone"):
        os.chmod(os.path.join(programs, name), 0o755)
    env = {**store.env(), "PATH": f"{programs}:{os.environ['PATH']}", "SAID": said}
    flags = [word for word in SMALL if word not in ("--peers", "none")]
    run = h.sluice("bench", "s3://bench-peers/model.bin", "--to", empty_place(h), *flags, "--peers", "s5cmd,rclone,curl", "--json",
                   env=env).expect(0)
    result = result_of(run)
    for way, settings in (("network", 4), ("store", 4), ("load", 5)):
        measured(result, way, settings)
    peers = {point["client"]: point for point in result["points"] if point["way"] == "peer"}
    assert peers["s5cmd"]["runs"] == 2 and peers["s5cmd"]["median_bytes_per_second"] > 0, peers["s5cmd"]
    assert peers["rclone"]["runs"] == 0 and "no luck today" in peers["rclone"]["why"], peers["rclone"]
    assert peers["curl"]["why"] == "it does not read from there", peers["curl"]
    with open(said) as file:
        words = file.read().splitlines()
    assert words[:4] == ["--endpoint-url", store.endpoint, "cp", "s3://bench-peers/model.bin"], words
    assert store.secret not in run.out + run.err


@check("versitygw_closing")
def bench_store_that_closes(h, store):
    """A store that closes the connection after every answer is measured too."""
    put_model(store, "bench-closing", "model.bin")
    run = h.sluice("bench", "s3://bench-closing/", "--to", empty_place(h), *SMALL, "--json", env=store.env()).expect(0)
    measured(result_of(run), "network", 4)


@check("nginx")
def bench_https(h, nginx):
    """HTTPS with a CA of its own: the bare network is measured through TLS."""
    with open(os.path.join(nginx.root, "bench.bin"), "wb") as file:
        file.write(os.urandom(MODEL_BYTES))
    run = h.sluice("bench", nginx.https + "/bench.bin", "--to", empty_place(h), *SMALL, "--json", "--set",
                   f"source.tls.caFile={nginx.ca}").expect(0)
    measured(result_of(run), "network", 4)


@check("versitygw")
def bench_refusals(h, store):
    """Wrong credentials, a missing object and a destination that is too small end it with their own codes."""
    put_model(store, "bench-refusals", "model.bin")
    uri, to = "s3://bench-refusals/model.bin", empty_place(h)
    wrong = {**store.env(), "AWS_SECRET_ACCESS_KEY": "wrong"}
    h.sluice("bench", uri, "--to", to, *SMALL, env=wrong).expect(3)
    h.sluice("bench", uri + ".none", "--to", to, *SMALL, env=store.env()).expect(4)
    h.sluice("bench", uri, "--to", to + "/none", *SMALL, env=store.env()).expect(4, "--to DIR")
    h.sluice("bench", "--to", to).expect(2, "--loopback")
    h.sluice("bench", "--loopback", "--bytes", "1PiB", "--to", to, *SMALL).expect(6)
    assert os.listdir(to) == [], os.listdir(to)


@check()
def bench_ends_at_a_signal(h):
    """SIGTERM in the middle ends it with 143; model, loads and the server of --loopback are gone."""
    to = empty_place(h)
    process = h.start("bench", "--loopback", "--bytes", "6MB", "--to", to, "--rounds", "1000", "--peers", "none")
    wait_for("the benchmark", lambda: os.path.isdir(os.path.join(to, "sluice-bench")))
    children = []

    def has_server():
        with open(f"/proc/{process.pid}/task/{process.pid}/children") as file:
            children[:] = [int(word) for word in file.read().split()]
        return children and catches_sigterm(process)
    wait_for("its server", has_server)
    assert len(children) == 1, children
    begin = time.monotonic()
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 143, process.returncode
    seconds = time.monotonic() - begin
    assert os.listdir(to) == [], os.listdir(to)
    wait_for("the end of its server", lambda: not os.path.exists(f"/proc/{children[0]}"), 20)
    return f"{seconds:.1f} s"


@check()
def bench_many_nodes(h):
    """Results in logs of many pods become one table, CSV and drawing; a broken line is named and ends it with 10."""
    lines, logs = [], h.directory("bench-logs")
    for node in ("a", "b", "c"):
        run = h.sluice("bench", "--loopback", "--bytes", "1MB", "--to", empty_place(h), "--rounds", "1", "--warmups", "0",
                       "--range-bytes", "256KiB", "--connections", "2", "--peers", "none", "--json", "--log-format", "json",
                       env={"K8S_NODE_NAME": f"worker-{node}", "JOB_COMPLETION_INDEX": str(len(lines))}).expect(0)
        lines.append(result_of(run))
        with open(os.path.join(logs, f"pod-{node}.log"), "w") as file:
            file.write("".join(f"[pod/bench-{node}] {line}\n" for line in (run.err + run.out).splitlines()))
    drawing, rows = os.path.join(h.disk, "nodes.svg"), os.path.join(h.disk, "nodes.csv")
    summary = h.sluice("bench", "--gather", logs, "--json", "--svg", drawing, "--csv", rows).expect(0).json()
    assert [node["node"] for node in summary["nodes"]] == ["worker-a", "worker-b", "worker-c"], summary["nodes"]
    group = next(row for row in summary["settings"] if row["way"] == "network")
    rates = [point["median_bytes_per_second"] for line in lines for point in line["points"] if point["way"] == "network"]
    assert group["nodes"] == 3 and abs(group["total_bytes_per_second"] / sum(rates) - 1) < 1e-4, group
    assert abs(group["slowest_bytes_per_second"] / min(rates) - 1) < 1e-4, group
    assert len(well_formed_svg(drawing).findall("{http://www.w3.org/2000/svg}rect")) == 1 + 2 * 3
    with open(rows, newline="") as file:
        assert {row["index"] for row in csv.DictReader(file)} == {"0", "1", "2"}
    with open(os.path.join(logs, "pod-d.log"), "w") as file:
        file.write('round 1 of 1\n{"sluice_bench":1,"node":"worker-d"}\n')
    broken = h.sluice("bench", "--gather", logs).expect(10, "worker-c", "pod-d.log:2")
    assert "worker-d" not in broken.out, broken.out


def container_of(path):
    try:
        import yaml
    except ImportError:
        raise Skip("no PyYAML") from None
    with open(path) as file:
        job = yaml.safe_load(file)
    assert job["kind"] == "Job", path
    return job, job["spec"]["template"]["spec"]


def bytes_of(text):
    return int(text[:-2]) << {"Mi": 20, "Gi": 30}[text[-2:]]


@check()
def bench_sums(h):
    """The tables and drawings of e2e/bench are right, and docs/benchmarks/results.md is made of its results."""
    done = subprocess.run([sys.executable, os.path.join(ROOT, "e2e", "bench", "selftest.py")], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()[-1]


@check("nginx", "versitygw")
def bench_beside_the_limit(h, nginx, store):
    """One round of e2e/bench with sluice alone: results, table and drawing; a second run measures nothing again."""
    out = os.path.join(h.directory("bench"), "race")
    command = [os.path.join(ROOT, "e2e", "bench", "run"), "--program", h.program, "--rounds", "1", "--workloads", "w8http", "--clients", "sluice", "--out", out]
    for again in (False, True):
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0 and "| sluice |" in done.stdout, done.stderr[-800:]
        assert ("measured before" in done.stderr) == again, done.stderr[-300:]
    well_formed_svg(os.path.join(out + "-some", "w8http.svg"))
    with open(os.path.join(out + "-some", "results.csv"), newline="") as file:
        assert [row["client"] for row in csv.DictReader(file)] == ["limit", "sluice"]


@check("nginx")
def bench_manifests(h, nginx):
    """Each Job of manifests/benchmark is restricted, has the memory that its comment asks for, and its command runs."""
    with open(os.path.join(nginx.root, "bench.bin"), "wb") as file:
        file.write(os.urandom(MODEL_BYTES))
    knobs = {"MODEL_URI": nginx.http + "/bench.bin", "RANGE_BYTES": "256KiB..512KiB", "CONNECTIONS": "1", "ROUNDS": "1"}
    paths = sorted(glob.glob(os.path.join(ROOT, "manifests", "benchmark", "*.yaml")))
    assert len(paths) == 3, paths
    for path in paths:
        job, pod = container_of(path)
        (container,) = pod["containers"]
        assert pod["securityContext"]["runAsNonRoot"] and pod["automountServiceAccountToken"] is False, path
        assert container["securityContext"] == {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True,
                                                "capabilities": {"drop": ["ALL"]}}, path
        size, limit = pod["volumes"][0]["emptyDir"]["sizeLimit"], container["resources"]["limits"]["memory"]
        assert bytes_of(size) + (512 << 20) <= bytes_of(limit), f"{path}: {limit} is not {size} and 512Mi"
        env = {row["name"]: row.get("value", "x") for row in container["env"]}
        words = [re.sub(r"\$\((\w+)\)", lambda found: knobs[found[1]] if env[found[1]] else "", word)
                 for word in container["args"]]
        words = [{"--to=/models": f"--to={empty_place(h)}", "--bytes=1GiB": "--bytes=2MB", "--start-at=/120": "--start-at=/1",
                  "--peers=auto": "--peers=none", "--rounds=3": "--rounds=1"}.get(word, word) for word in words]
        run = h.sluice(*words, env={key: value for key, value in env.items() if key not in knobs}).expect(0)
        if "--json" in words:
            result = result_of(run)
            assert (result["node"], result["pod"]) == ("x", "x"), result["node"]
        else:
            assert io.StringIO(run.out).readline().startswith("x: "), run.out[:100]
        assert job["spec"]["backoffLimit"] == 0 and job["spec"]["template"]["spec"]["restartPolicy"] == "Never"
