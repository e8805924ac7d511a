"""Engine caches that travel: a real store, minisign and tar, and a program that compiles on its first start as an engine does."""
import concurrent.futures
import http.server
import json
import os
import subprocess
import sys
import threading

from harness import check, free_port, http_get, need_program, pinned, wait_for

ROOMS = ("load/sets", "load/unpack", "tools/cli", "storage/upload")
BUCKET = "engine-caches"
# Where its caches are says the environment; it writes what it lacks, and says whether it was there.
ENGINE = """
import os, sys
folders = [os.environ["VLLM_CACHE_ROOT"] + "/torch_compile_cache/0a1b", os.environ["TRITON_CACHE_DIR"], os.environ["CUDA_CACHE_PATH"]]
files = [os.path.join(folder, f"kernel-{i}") for folder in folders for i in range(20)]
have = [os.path.exists(path) and open(path).read() == os.path.basename(path) * 500 for path in files]
print("warm" if all(have) else "cold" if not any(have) else "mixed", flush=True)
for path in files:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    if not os.path.exists(path):
        open(path, "w").write(os.path.basename(path) * 500)
"""


class Machine:
    """A machine with a model, and with caches at the path that all machines have."""

    def __init__(self, h, store, name, keys=""):
        self.h, self.env = h, store.env()
        self.folder = h.directory(f"{name}-engine-caches")
        self.secret, self.public = (os.path.join(self.folder, key) for key in ("key.sec", "key.pub"))
        if not os.path.exists(self.secret):
            subprocess.run([need_program("minisign"), "-G", "-W", "-p", self.public, "-s", self.secret], check=True, capture_output=True)
        store.make_bucket(BUCKET)
        store.put(BUCKET, f"{name}/model/config.json", b"{}")
        self.path = os.path.join(self.folder, "volume", "caches")
        self.spec = os.path.join(self.folder, "model.yaml")
        with open(self.spec, "w") as file:
            file.write(f"""\
apiVersion: sluice/v1alpha1
kind: Model
metadata: {{name: m}}
source: {{uri: 's3://{BUCKET}/{name}/model/'}}
sink:
  tmpfs: {{path: {h.fresh()}}}
  caches:
    path: {self.path}
    url: s3://{BUCKET}/{name}/sets/
    labels: {{engine: toy-1}}
    publicKeyFile: {self.public}
    secretKeyFile: {self.secret}
    save: true
    {keys}
""")

    def start_engine(self, state):
        run = self.h.sluice("load", self.spec, *pinned(), "--", sys.executable, "-c", ENGINE, env=self.env)
        run.expect(0)
        assert run.out.strip() == state, f"{run.out.strip()}, not {state}: {run.err}"
        return run

    def caches(self, *arguments):
        return self.h.sluice("caches", *arguments, self.spec, env=self.env)

    def replace(self):
        """Another machine of the same kind."""
        self.h.remove(self.path)


@check("versitygw", smoke=True)
def an_engine_starts_warm_on_another_machine(h, versitygw):
    """Cold, saved, and warm elsewhere; what minisign and tar say of the set; one that was changed is a cold start."""
    machine = Machine(h, versitygw, "travel")
    machine.start_engine("cold").expect(0, "has no set")
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        runs = [run.expect(0) for run in pool.map(lambda _: machine.caches("save", "--json"), range(3))]
    assert any(run.json()["saved"] for run in runs), [run.out for run in runs]  # versitygw decides If-None-Match in two steps
    assert not machine.caches("save", "--json").expect(0).json()["saved"]
    machine.replace()
    machine.start_engine("warm").expect(0, "restored 60 files")
    machine.start_engine("warm").expect(0, "has files already")
    listed = machine.caches("ls", "--json").expect(0).json()
    assert listed["own"] and "refused" not in listed and json.loads(listed["facts"])["labels"] == {"engine": "toy-1"}, listed

    # what is signed is four lines
    folder = os.path.join(versitygw.root, BUCKET, "travel", "sets")
    with open(os.path.join(folder, "sets", listed["key"], "latest.json")) as file:
        latest = json.load(file)
    text = os.path.join(machine.folder, "signed")
    with open(text, "w") as file:
        file.write(f"sluice engine caches 1\nkey {latest['key']}\nsha256 {latest['sha256']}\nbytes {latest['bytes']}\n")
    with open(text + ".minisig", "w") as file:
        file.write(latest["minisign"])
    subprocess.run([need_program("minisign"), "-Vm", text, "-p", machine.public], check=True, capture_output=True)
    blob = os.path.join(folder, "blobs", latest["sha256"] + ".tar.zst")
    names = subprocess.run(["tar", "-I", need_program("zstd"), "-tf", blob], check=True, capture_output=True, text=True).stdout.split()
    assert "vllm/torch_compile_cache/0a1b/kernel-7" in names and names == sorted(names), names

    with open(blob, "r+b") as file:
        file.seek(200)
        file.write(b"other code")
    machine.replace()
    machine.start_engine("cold").expect(0, "the set", "is not used")

    os.unlink(blob)
    os.utime(os.path.join(machine.path, "vllm/torch_compile_cache/0a1b/kernel-7"), (1, 1))  # another time, another archive and name
    machine.caches("save", "--replace").expect(0, "saved 60 files")
    with open(blob, "wb") as file:
        file.write(b"left over")
    for arguments, there in (((), True), (("--remove",), False)):
        machine.caches("prune", *arguments).expect(0, latest["sha256"], "1 object")
        assert os.path.exists(blob) == there
    machine.replace()
    machine.start_engine("warm")


@check()
def a_sidecar_is_started_when_the_caches_are_there(h):
    """The model is published and its caches are still being restored: /startupz holds the engine back."""
    asked, go = threading.Event(), threading.Event()

    class Sets(http.server.BaseHTTPRequestHandler):
        def answer(self):
            asked.set()
            go.wait()
            self.send_response(404)
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_GET = do_HEAD = answer

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Sets)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    folder, port = h.directory("held-back"), free_port()
    spec, model, out = (os.path.join(folder, name) for name in ("model.yaml", "m.bin", "out"))
    with open(model, "wb") as file:
        file.write(b"weights")
    with open(spec, "w") as file:
        file.write(f"""\
apiVersion: sluice/v1alpha1
kind: Model
metadata: {{name: m}}
source: {{uri: {model}}}
sink:
  tmpfs: {{path: {out}}}
  caches: {{path: {folder}/volume/caches, url: 'http://127.0.0.1:{server.server_port}/sets/', trust: store, restoreSeconds: 86400}}
""")
    sidecar = h.start("load", spec, *pinned(), "--stay", f"--listen=127.0.0.1:{port}")
    url = f"http://127.0.0.1:{port}/startupz"
    wait_for("the question for its caches", asked.is_set)

    def held_back():
        status, said, _ = http_get(url)
        assert status == 503, (status, said)
        return json.loads(said)["reasons"] == ["engine caches are being restored"]
    wait_for("the model", held_back)
    assert os.path.exists(os.path.join(out, ".sluice", "ready"))
    go.set()
    wait_for("the start", lambda: http_get(url)[0] == 200)
    h.stop(sidecar)
    server.shutdown()


@check("versitygw")
def a_sidecar_saves_when_the_engine_stands_still(h, versitygw):
    """--stay: not before the engine answers with 200."""
    ready = threading.Event()

    class Health(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200 if ready.is_set() else 503)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Health)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    machine = Machine(h, versitygw, "sidecar", f"ready: 'http://127.0.0.1:{server.server_port}/health'")
    machine.start_engine("cold")
    sidecar = h.start("load", machine.spec, *pinned(), "--stay", env=machine.env)
    wait_for("the sidecar to wait", lambda: "files already" in h.said(sidecar))
    assert machine.caches("ls", "--json").expect(0).json() == [], "it was saved before the engine was ready"
    ready.set()
    wait_for("the set", lambda: "saved 60 files" in h.said(sidecar))
    h.stop(sidecar)
    server.shutdown()
    machine.replace()
    machine.start_engine("warm")
