"""What people and other programs meet: HTTP, schema, pages, completion, share, exec."""
import json
import os
import random
import re
import shutil
import signal
import subprocess

from harness import ROOT, check, free_port, http_get, need_program, port_open, sha256_file, wait_for
from servers import share

ROOMS = ("core/observe", "storage/file", "model/spec", "load/publish", "node/web", "tools/cli", "docs")
MIB = 1 << 20
HEAD = "apiVersion: sluice/v1alpha1\nkind: Model\nmetadata: {name: m}\n"
VALID = [
    "source: {uri: 's3://b/k/'}\nsink: {tmpfs: {path: /m}}\n",
    "source: {uri: 'https://h/m.safetensors', include: ['*.json'], tls: {verify: false}}\nsink: {tmpfs: {path: /m, layout: safetensors}}\n"
    "tensors: {include: ['a.*']}\nverify: {hashes: all}\nreaders: {connections: 8, rangeBytes: 8Mi}\nlisten: 127.0.0.1:0\n",
]
INVALID = [
    "source: {url: 's3://b/k/'}\nsink: {tmpfs: {path: /m}}\n",
    "source: {uri: 's3://b/k/'}\nsink: {tmpfs: {path: /m, layout: zip}}\n",
    "source: {uri: 's3://b/k/'}\nsink: {tmpfs: {path: /m}}\nreaders: {connections: many}\n",
    "source: {uri: ['s3://b/k/']}\nsink: {tmpfs: {path: /m}}\n",
]


def source_directory(h, minilm):
    """Published by a load from a local directory, so it holds a .sluice folder too."""
    to = h.fresh("shared")
    h.load(minilm.directory + "/", to).expect(0)
    return to


@check("minilm", smoke=True)
def stay_serves_health_and_metrics(h, minilm):
    """load --stay: /readyz, /metrics that promtool accepts, /v1/loads, the page; SIGTERM ends it."""
    port, to = free_port(), h.fresh()
    process = h.start("load", "--stay", "--listen", f"127.0.0.1:{port}", minilm.directory + "/", "--to", to, "--progress", "none")
    wait_for("/readyz", lambda: port_open(port) and http_get(f"http://127.0.0.1:{port}/readyz")[0] == 200)
    url = f"http://127.0.0.1:{port}"
    for path in ("/healthz", "/startupz", "/v1/models", "/"):
        assert http_get(url + path)[0] == 200, path
    assert "minilm" in http_get(url + "/v1/loads")[1].decode()
    assert http_get(url + "/no-such-page")[0] == 404
    status, metrics, headers = http_get(url + "/metrics")
    assert status == 200 and "text/plain" in headers["Content-Type"], headers
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) in (0, 143), process.returncode
    done = subprocess.run([need_program("promtool"), "check", "metrics"], input=metrics, capture_output=True)
    assert done.returncode == 0, (done.stdout + done.stderr).decode()[-800:]
    loaded = re.search(rb"^sluice_loads_published_total ([0-9.e+]+)", metrics, re.MULTILINE)
    assert loaded and float(loaded.group(1)) == 1, "sluice_loads_published_total is not 1"
    return f"{len(metrics.splitlines())} lines of metrics"


@check("minilm", smoke=True)
def share_and_load_again(h, minilm):
    """A published model is served by `sluice share` and loaded from there; nothing above it is served."""
    directory = source_directory(h, minilm)
    process, origin = share(h, directory)
    to = h.fresh()
    h.load(origin + "/model.safetensors", to).expect(0)
    assert sha256_file(os.path.join(to, "model.safetensors")) == minilm.sha256["model.safetensors"]
    for path in ("/../../etc/passwd", "/%2e%2e/%2e%2e/etc/passwd", "//etc/passwd"):
        answer = http_get(origin + path)
        assert answer[0] in (400, 403, 404), f"{path}: {answer[0]}"
    h.stop(process)


@check("minilm", smoke=True)
def verify_finds_a_flipped_bit(h, minilm):
    """`sluice verify` of a published directory: 0, and 5 naming the file after one bit changed."""
    directory = source_directory(h, minilm)
    h.sluice("verify", directory).expect(0)
    path = os.path.join(directory, "model.safetensors")
    os.chmod(path, 0o644)
    with open(path, "r+b") as file:
        file.seek(50_000_000)
        byte = file.read(1)[0]
        file.seek(50_000_000)
        file.write(bytes([byte ^ 1]))
    h.sluice("verify", directory).expect(5, "model.safetensors")


@check("minilm")
def command_after_dashes(h, minilm):
    """load … -- COMMAND becomes the command once published."""
    to = h.fresh()
    run = h.sluice("load", minilm.directory + "/", "--to", to, "--progress", "none", "--", "sh", "-c",
                   f"test -e {to}/.sluice/ready && echo started && exit 9")
    assert (run.code, run.out.strip()) == (9, "started"), (run.code, run.out, run.err)


@check("minilm")
def wait_sees_the_model(h, minilm):
    """`sluice wait` returns once it is published, and not before."""
    to = h.fresh()
    waiting = h.start("wait", to)
    try:
        waiting.wait(0.5)
        raise AssertionError("it did not wait")
    except subprocess.TimeoutExpired:
        pass
    h.load(minilm.directory + "/", to).expect(0)
    assert waiting.wait(180) == 0


@check()
def the_next_version_fetches_what_changed(h):
    """Of 20 objects one changes, then of one in 64 ranges two, by its new sidecar: that is fetched, and the rest is right."""
    source, to = h.fresh("source"), h.fresh()
    os.makedirs(source)
    noise = random.Random(7)

    def write(name, size):
        with open(os.path.join(source, name), "wb") as file:
            file.write(noise.randbytes(size))

    for number in range(20):
        write(f"part-{number:02}.bin", MIB)
    write("whole.bin", 8 * MIB)
    h.sluice("sign", os.path.join(source, "whole.bin"), "--range-bytes", "128Ki").expect(0)
    process, origin = share(h, source)
    first = h.load(origin + "/", to).expect(0).json()
    assert first["inherited"] == 0 and first["bytes"] == 28 * MIB, first
    write("part-07.bin", MIB)
    plan = json.loads(h.sluice("plan", origin + "/", "--to", to, "--json").expect(0).out)
    objects = h.load(origin + "/", to).expect(0).json()
    assert objects["inherited"] == plan["inherited_bytes"] == 27 * MIB, (objects, plan)
    assert objects["fetched"] < 5 * MIB, objects
    with open(os.path.join(source, "whole.bin"), "r+b") as file:
        for number in (20, 40):
            file.seek(number * MIB // 8)
            file.write(b"changed")
    os.unlink(os.path.join(source, "whole.bin.sluice.json"))
    h.sluice("sign", os.path.join(source, "whole.bin"), "--range-bytes", "128Ki").expect(0)
    version = h.sluice("wait", to, "--than", "0" * 64).expect(0).out.strip()
    plan = json.loads(h.sluice("plan", origin + "/", "--to", to, "--json").expect(0).out)
    assert plan["left_to_fetch_bytes"] == 2 * MIB // 8, plan
    ranges = h.load(origin + "/", to).expect(0).json()
    assert ranges["inherited"] == plan["inherited_bytes"] == 28 * MIB - 2 * MIB // 8, (ranges, plan)
    assert h.sluice("wait", to, "--than", version, "--timeout-seconds", "60").expect(0).out.strip() != version
    for name in os.listdir(source):
        if not name.endswith(".sluice.json"):
            assert sha256_file(os.path.join(source, name)) == sha256_file(os.path.join(to, name)), name
    h.sluice("verify", to).expect(0)
    h.stop(process)
    return f"{objects['fetched'] / MIB:.1f} and {ranges['fetched'] / MIB:.1f} of 28 MiB fetched"


@check("python")
def schema_and_parser_agree(h, python):
    """The JSON schema is one to a real validator, and judges specs as the parser does."""
    schema = h.sluice("docs", "schema").expect(0).out
    program = ("import json, sys, jsonschema\n"
               "schema, docs = json.load(sys.stdin)\n"
               "cls = jsonschema.validators.validator_for(schema); cls.check_schema(schema)\n"
               "print(json.dumps([sum(1 for _ in cls(schema).iter_errors(d)) for d in docs]))\n")
    documents = [{"apiVersion": "sluice/v1alpha1", "kind": "Model", "metadata": {"name": "m"}, "source": {"uri": "s3://b/k/"},
                  "sink": {"tmpfs": {"path": "/m"}}, "readers": {"connections": "auto", "rangeBytes": "8Mi"}}]
    for change in ({"sources": {}}, {"source": {"uri": ["a"]}}, {"sink": {"tmpfs": {"path": "/m", "layout": "zip"}}},
                   {"readers": {"connections": "many"}}, {"metadata": {"name": "m", "nmae": "m"}}):
        documents.append({**documents[0], **change})
    done = subprocess.run([python, "-c", program], input=json.dumps([json.loads(schema), documents]), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-800:]
    errors = json.loads(done.stdout)
    assert errors[0] == 0 and all(errors[1:]), f"errors per document: {errors}"
    for number, (body, code) in enumerate([(text, 0) for text in VALID] + [(text, 2) for text in INVALID]):
        path = os.path.join(h.disk, f"spec-{number}.yaml")
        with open(path, "w") as file:
            file.write(HEAD + body)
        run = h.sluice("plan", path, "--attempts", "1", "--unreachable-seconds", "1", timeout=300)
        assert (run.code == 2) == (code == 2), f"{body}: {run.code} {run.err[-300:]}"


@check()
def man_pages_render(h):
    """Every manual page is rendered by man and groff without a warning."""
    groff = need_program("groff")
    folder = os.path.join(h.disk, "manual")
    h.sluice("docs", "--write", folder).expect(0)
    folder = os.path.join(folder, "man")
    pages = [os.path.join(parent, name) for parent, _, names in os.walk(folder) for name in names if name[-1].isdigit()]
    assert pages, "no manual pages"
    for page in pages:
        done = subprocess.run([groff, "-man", "-Tutf8", "-Kutf8", "-ww", "-z", page], capture_output=True, text=True)
        assert done.returncode == 0 and not done.stderr.strip(), f"{page}: {done.stderr[:500]}"
        if shutil.which("man"):
            shown = subprocess.run(["man", "--warnings", "-l", page], capture_output=True, text=True, env=dict(os.environ, MANPAGER="cat", MANWIDTH="100", LC_ALL="C.UTF-8"))
            if "minimized" not in shown.stdout + shown.stderr:
                assert shown.returncode == 0 and "SYNOPSIS" in shown.stdout and not shown.stderr.strip(), f"{page}: {shown.stderr[:500]}"
    return f"{len(pages)} pages"


@check()
def completion_works_in_bash(h):
    """The script is sourced by bash and completes commands and flags."""
    script = os.path.join(h.disk, "completion.bash")
    with open(script, "w") as file:
        file.write(h.sluice("completion", "bash").expect(0).out)
    ask = ('source "$1"; COMP_WORDS=(sluice {words}); COMP_CWORD={at}; COMP_LINE="sluice {words}"; COMP_POINT=${{#COMP_LINE}}; '
           'f=$(complete -p sluice | sed "s/.*-F \\([^ ]*\\).*/\\1/"); "$f" sluice "${{COMP_WORDS[COMP_CWORD]}}"; printf "%s\\n" "${{COMPREPLY[@]}}"')

    def complete(words, at):
        done = subprocess.run(["bash", "-c", ask.format(words=words, at=at), "bash", script], capture_output=True, text=True,
                              env=dict(os.environ, PATH=os.path.dirname(h.program) + ":" + os.environ["PATH"]))
        assert done.returncode == 0 and not done.stderr, done.stderr
        return done.stdout.split()
    assert "inspect" in complete("ins", 1), complete("ins", 1)
    assert "--connections" in complete("load --conn", 2), complete("load --conn", 2)


@check(smoke=True)
def usage_errors_name_the_nearest(h):
    """A mistyped flag, command or key: 2, with the right one."""
    h.sluice("laod").expect(2, "load")
    h.sluice("load", "/tmp/x", "--to", "/tmp/y", "--conections", "3").expect(2, "--connections")
    path = os.path.join(h.disk, "typo.yaml")
    with open(path, "w") as file:
        file.write(HEAD + "source:\n  uri: s3://b/k/\n  includes: ['*']\nsink: {tmpfs: {path: /m}}\nreaders: {attempts: 0.5}\n")
    run = h.sluice("plan", path).expect(2, "typo.yaml:6:3", "did you mean 'include'")
    assert "attempts" in run.err, "only the first mistake was reported"
