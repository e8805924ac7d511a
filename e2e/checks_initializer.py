"""KServe's storage initializer contract: shaped as KServe shapes the process, and beside KServe's own package."""
import http.server
import io
import json
import os
import re
import signal
import stat
import subprocess
import sys
import tarfile
import threading
import urllib.parse
import zipfile

import checks_through
from harness import CACHE, ROOT, Skip, check, fixture, free_port, one_at_a_time, run_client, sha256_file, wait_for

ROOMS = ("tools/initializer", "core/packing", "storage/stores")
BUCKET = "kserve"
USER = 65532
PACKAGES = ["boto3==1.44.5", "requests", "certifi", "pyyaml", "orjson"]
PEER = "kserve-storage==0.21.0"


# ---- what there is to load ------------------------------------------------------------------------

def tar_of(files, mode="w:gz"):
    """An archive of {name: bytes or ("link", target)}."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode=mode) as archive:
        for name, data in files.items():
            row = tarfile.TarInfo(name)
            if isinstance(data, tuple):
                row.type, row.linkname = tarfile.SYMTYPE, data[1]
                archive.addfile(row)
            else:
                row.size, row.mode = len(data), 0o755 if name.endswith(".sh") else 0o600
                archive.addfile(row, io.BytesIO(data))
    return out.getvalue()


def zip_of(files):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return out.getvalue()


CONTENT = {"config.json": b'{"model_type": "x"}', "run.sh": b"exit 0\n", "1/weights.bin": os.urandom(300000),
           "1/long-" + "n" * 120 + "/v.txt": b"v", "latest": ("link", "1")}
PLAIN = {name: data for name, data in CONTENT.items() if not isinstance(data, tuple)}
OBJECTS = {
    "model/config.json": b"{}", "model/weights.bin": os.urandom(200000), "model/sub/tokenizer.json": b"[1]",
    "model/empty.txt": b"", "model-v2/weights.bin": b"v2", "model.json": b"neighbour",
    "single": b"just this", "single-log": b"not this", "single.d/x": b"nor this",
    "odd/a b+c%2F.bin": b"odd", "odd/ünï/模型.bin": b"unicode", "odd/#hash.bin": b"hash",
    "tgz/model.tar.gz": tar_of(CONTENT), "tgz-alone/deep/model.tgz": tar_of(CONTENT), "tar/model.tar": tar_of(CONTENT, "w"),
    "xz/model.tar.xz": tar_of(CONTENT, "w:xz"), "zip/model.zip": zip_of(PLAIN), "pax/model.tar": tar_of(CONTENT, "w:"),
    "mixed/model.tar.gz": tar_of(CONTENT), "mixed/README.md": b"read me", "broken/model.zip": b"PK\x03\x04 not a zip",
    "broken-tar/model.tar.gz": b"\x1f\x8b not gzip", "evil/model.tar": tar_of({"../../escaped": b"out"}, "w"),
    "evil-link/model.tar": tar_of({"l": ("link", "/etc"), "l/passwd": b"out"}, "w"),
    "not-archive/model.tar.bin": b"bytes", "nothing/empty": b"",
    "packed/model.zip": zip_of({"model-config.json": b"{}", "model../x": b"x", "mod/y": b"y"}),
    "packed-tar/model.tar.gz": tar_of({"config.json": b"{}", "mod-el": b"1", "model/t.json": ("link", "../config.json")}),
}


@fixture("kserve_bucket")
def kserve_bucket(h):
    """versitygw with the objects above."""
    store = h.fixture("versitygw")
    store.make_bucket(BUCKET)
    for key, data in OBJECTS.items():
        store.put(BUCKET, key, data)
    store.put(BUCKET, "model/folder/", b"")
    return store


STS_ANSWER = """<AssumeRoleWithWebIdentityResponse><AssumeRoleWithWebIdentityResult><Credentials>
<AccessKeyId>{}</AccessKeyId><SecretAccessKey>{}</SecretAccessKey><SessionToken>session</SessionToken>
<Expiration>2099-01-01T00:00:00Z</Expiration>
</Credentials></AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>"""


class Web(http.server.BaseHTTPRequestHandler):
    """Serves .files by ranges, with the content types that the upstream insists on; /private/ wants a header."""
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_GET(self):
        path = self.path.split("?")[0]
        data = self.server.files.get(path)
        if data is None:
            return self.answer(404, b"")
        if path.startswith("/private/") and self.headers.get("X-Token") != "sesame":
            return self.answer(401, b"")
        kinds = {".zip": "application/zip", ".gz": "application/gzip", ".tar": "application/x-tar"}
        kind = next((kind for end, kind in kinds.items() if self.path.endswith(end)), "application/octet-stream")
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if not wanted:
            return self.answer(200, data, kind)
        begin = int(wanted[1])
        if begin >= len(data):
            self.server.past.append(f"{path} {wanted[0]}")
            return self.answer(416, b"", kind, f"bytes */{len(data)}")
        part = data[begin:int(wanted[2] or len(data)) + 1]
        self.answer(206, part, kind, f"bytes {begin}-{begin + len(part) - 1}/{len(data)}")

    def do_POST(self):
        """STS: the role and the token of .identity become the keys of .store."""
        form = urllib.parse.parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
        role, token = self.server.identity
        if (form.get("Action"), form.get("RoleArn"), form.get("WebIdentityToken")) != (["AssumeRoleWithWebIdentity"], [role], [token]):
            return self.answer(403, b"<ErrorResponse><Error><Code>AccessDenied</Code></Error></ErrorResponse>", "text/xml")
        self.answer(200, STS_ANSWER.format(self.server.store.access, self.server.store.secret).encode(), "text/xml")

    def answer(self, status, body, kind="text/plain", content_range=None):
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("ETag", '"1"')
        if content_range:
            self.send_header("Content-Range", content_range)
        self.end_headers()
        self.wfile.write(body)


class WebServer(http.server.ThreadingHTTPServer):
    def handle_error(self, *_):
        """Clients that go are no news."""


@fixture("kserve_web")
def kserve_web(h):
    server = WebServer(("127.0.0.1", free_port()), Web)
    server.files = {"/m/" + key.replace("/", "-"): data for key, data in OBJECTS.items() if data}
    server.past = []  # requests for what is behind the end
    server.files["/private/weights.bin"] = OBJECTS["model/weights.bin"]
    server.files["/download"] = OBJECTS["zip/model.zip"]
    threading.Thread(target=server.serve_forever, daemon=True).start()
    server.origin = f"http://127.0.0.1:{server.server_port}"
    return server


@fixture("kserve_python", expensive=True)
@one_at_a_time("kserve")
def kserve_python(h):
    """A Python with KServe's own storage package."""
    own = os.path.join(CACHE, "kserve-venv")
    python = os.path.join(own, "bin", "python")
    if os.access(python, os.X_OK) and subprocess.run([python, "-c", "import kserve_storage, boto3"], capture_output=True).returncode == 0:
        return python
    for command in ([sys.executable, "-m", "venv", own], [python, "-m", "pip", "install", "-q", *PACKAGES],
                    [python, "-m", "pip", "install", "-q", "--no-deps", PEER]):
        done = run_client(command, timeout=600)
        if done.returncode:
            raise Skip(f"{' '.join(command[:4])}: {(done.stderr or done.stdout).strip()[-200:]}")
    return python


# ---- running and looking --------------------------------------------------------------------------

def kserve_env(store, **more):
    """What KServe's webhook makes of an S3 secret, and what it sets for every model."""
    return {"AWS_ACCESS_KEY_ID": store.access, "AWS_SECRET_ACCESS_KEY": store.secret, "AWS_DEFAULT_REGION": "us-east-1",
            "S3_ENDPOINT": store.endpoint.split("//")[1], "AWS_ENDPOINT_URL": store.endpoint, "S3_USE_HTTPS": "0",
            "HF_HUB_ENABLE_HF_TRANSFER": "1", "HF_XET_HIGH_PERFORMANCE": "1", "HF_XET_NUM_CONCURRENT_RANGE_GETS": "8", **more}


def tree(path):
    """{name: ("file", digest, executable) or ("link", target)}; folders are what holds them."""
    found = {}
    for parent, folders, files in os.walk(path):
        for name in files + [name for name in folders if os.path.islink(os.path.join(parent, name))]:
            whole = os.path.join(parent, name)
            mode = os.lstat(whole).st_mode
            found[os.path.relpath(whole, path)] = ("link", os.readlink(whole)) if stat.S_ISLNK(mode) else \
                ("file", sha256_file(whole), bool(mode & 0o100))
    return found


def expected(names, executable=()):
    """The tree of these {file: bytes}."""
    import hashlib
    return {name: ("file", hashlib.sha256(data).hexdigest(), name in executable) for name, data in names.items()}


class Pod:
    """A process as KServe shapes it: arguments, its environment and no other, cwd /, no HOME, any user."""

    def __init__(self, h):
        self.h, self.directory = h, h.fresh("pod")
        os.makedirs(self.directory, mode=0o755)
        os.chmod(h.memory, 0o755)
        os.chmod(h.disk, 0o755)
        self.mount = os.path.join(self.directory, "models")
        os.mkdir(self.mount)
        os.chmod(self.mount, 0o777)
        self.message = os.path.join(self.directory, "termination")
        with open(self.message, "w"):
            pass
        os.chmod(self.message, 0o666)
        self.program = os.path.join(h.directory("pod"), "sluice")
        if not os.path.exists(self.program):
            with open(h.program, "rb") as file, open(self.program, "wb") as copy:
                copy.write(file.read())
            os.chmod(self.program, 0o755)

    def command(self, *arguments):
        start = ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups", "--inh-caps=-all", "--no-new-privs"]
        return [*(start if os.getuid() == 0 else []), self.program, "initializer", *arguments]

    def environment(self, extra):
        return {"PATH": "/usr/bin:/bin", "KUBERNETES_SERVICE_HOST": "10.96.0.1", "AWS_EC2_METADATA_DISABLED": "true",
                "SLUICE_TERMINATION_LOG": self.message, **extra}

    def run(self, environment, *arguments):
        return subprocess.run(self.command(*arguments), env=self.environment(environment), cwd="/", timeout=300,
                              stdin=subprocess.DEVNULL, capture_output=True, text=True)

    def ok(self, environment, *arguments):
        done = self.run(environment, *arguments)
        assert done.returncode == 0, f"exit code {done.returncode}: {done.stderr[-600:]}"
        assert not done.stdout, f"stdout: {done.stdout[:200]}"
        return tree(self.mount)


# ---- beside the upstream --------------------------------------------------------------------------

def peer_cases(store, web, local):
    """(environment, sources, places below the destination): both must leave the same trees or both fail."""
    def s3(path, places=("",), **more):
        return (kserve_env(store, **more), [f"s3://{BUCKET}/{path}"], places)
    config = {"type": "s3", "endpoint_url": store.endpoint, "access_key_id": store.access,
              "secret_access_key": store.secret, "region": "us-east-1", "bucket": "unused"}
    wrong = dict(config, secret_access_key="wrong")
    cases = [s3(path) for path in (
        "model/", "model", "mod", "/model/", "single", "odd", "odd/", "tgz", "tgz/model.tar.gz", "tgz-alone", "tar", "xz/none",
        "zip", "pax", "mixed", "mixed/model.tar.gz", "broken", "broken-tar", "evil", "nothing", "none", "not-archive",
        "packed/mod", "packed-tar/mod")]
    cases += [
        s3("model/", STORAGE_ALLOW_PATTERNS='["*.json"]'), s3("model/", STORAGE_IGNORE_PATTERNS="*.bin, sub/*"),
        s3("model", STORAGE_ALLOW_PATTERNS="*[!b]in,-v2/*", STORAGE_IGNORE_PATTERNS='["[ab].json"]'),
        s3("model/", STORAGE_ALLOW_PATTERNS='["*.none"]'), s3("single", STORAGE_ALLOW_PATTERNS="other"),
        s3("mixed", STORAGE_ALLOW_PATTERNS="*.tar.gz"), s3("model/", STORAGE_ALLOW_PATTERNS="[]"),
        s3("model/", S3_READ_TIMEOUT="20", S3_CONNECT_TIMEOUT="5", S3_MAX_ATTEMPTS="2", S3_MAX_FILE_CONCURRENCY="1"),
        s3("model/", AWS_SECRET_ACCESS_KEY="wrong"), s3("model/", S3_MAX_ATTEMPTS="many"),
        s3("model/", AWS_CA_BUNDLE="/does/not/exist.crt"), s3("model/", S3_VERIFY_SSL="0"),
        ({"STORAGE_CONFIG": json.dumps(config)}, [f"s3://{BUCKET}/model/"], ("",)),
        ({"STORAGE_CONFIG": json.dumps(wrong)}, [f"s3://{BUCKET}/model/"], ("",)),
        ({"STORAGE_CONFIG": json.dumps(wrong), "STORAGE_OVERRIDE_CONFIG": json.dumps({"secret_access_key": store.secret})},
         [f"s3://{BUCKET}/model/"], ("",)),
        ({"STORAGE_CONFIG": "{"}, [f"s3://{BUCKET}/model/"], ("",)),
        (kserve_env(store), ["s3://no-such-bucket/model"], ("",)),
        (kserve_env(store), [f"s3://{BUCKET}/model/", f"s3://{BUCKET}/tgz", f"s3://{BUCKET}/zip"], ("base", "a/b", "base/adapters")),
        (kserve_env(store), [f"s3://{BUCKET}/mixed", f"s3://{BUCKET}/single"], ("", "")),
        (kserve_env(store), [f"s3://{BUCKET}/single", f"s3://{BUCKET}/none"], ("a", "b")),
    ]
    header = {"127.0.0.1-headers": '{"X-Token": "sesame"}'}
    cases += [(env, [web.origin + path], ("",)) for env, path in (
        ({}, "/m/model-weights.bin"), ({}, "/m/tgz-model.tar.gz"), ({}, "/m/tar-model.tar"), ({}, "/m/zip-model.zip"),
        ({}, "/m/zip-model.zip?signature=x.zip"), ({}, "/m/none.bin"), ({}, "/"), ({}, "/download?name=model.zip"),
        (header, "/private/weights.bin"), ({}, "/private/weights.bin"), ({"127.0.0.1-headers": "[]"}, "/private/weights.bin"))]
    cases += [({}, [path], ("",)) for path in (
        local, "file://" + local, local + "/model.json", local + "/m.tar.gz", local + "/none", "file:///none", "gs2://x/y")]
    cases.append(({"STORAGE_IGNORE_PATTERNS": "*.gz,model*"}, [local], ("",)))
    return cases


def local_folder(h):
    path = h.directory("kserve-local")
    for name, data in {"model.json": b"1", "sub/x.bin": b"2", ".hidden": b"3", "m.tar.gz": OBJECTS["tgz/model.tar.gz"]}.items():
        os.makedirs(os.path.dirname(os.path.join(path, name)), exist_ok=True)
        with open(os.path.join(path, name), "wb") as file:
            file.write(data)
    return path


@check("kserve_bucket", "kserve_web", "kserve_python")
def kserve_trees_equal_upstreams(h, store, web, python):
    """Every source, variable and pattern leaves the same tree as KServe's own package, or fails where it fails."""
    cases, theirs = peer_cases(store, web, local_folder(h)), []
    for number, (environment, sources, places) in enumerate(cases):
        root = os.path.join(h.directory("kserve-peer"), str(number))
        theirs.append({"environment": environment,
                       "arguments": [text for pair in zip(sources, [os.path.join(root, place) for place in places]) for text in pair]})
    done = subprocess.run([python, os.path.join(os.path.dirname(__file__), "kserve_peer.py")], input=json.dumps(theirs), text=True,
                          capture_output=True, timeout=300)
    assert done.returncode == 0, done.stderr[-800:]
    wrong, failed, slowest = [], 0, (0, "")
    for number, ((environment, sources, places), answer) in enumerate(zip(cases, json.loads(done.stdout))):
        root = h.fresh("kserve")
        arguments = [text for pair in zip(sources, [os.path.join(root, place) for place in places]) for text in pair]
        run = h.sluice("initializer", *arguments, env=environment)
        failed += run.code != 0
        slowest = max(slowest, (run.seconds, str(sources)))
        if run.code != answer["code"]:
            wrong.append(f"{sources} {answer}: {run.code} {run.err.strip()[-300:]}")
        elif run.code == 0:
            own, other = tree(root), tree(os.path.join(h.directory("kserve-peer"), str(number)))
            if own != other:
                wrong.append(f"{sources}: {sorted(own.items())[:9]} is not {sorted(other.items())[:9]}")
        else:
            assert not tree(root) or any(".sluice" in name for name in tree(root)), f"{sources}: {tree(root)}"
    assert not web.past, web.past
    assert not wrong, f"{len(wrong)} of {len(cases)} differ: " + "; ".join(wrong)[:3000]
    return f"{len(cases)} cases, {failed} of them refused by both; our slowest took {slowest[0]:.2f} s: {slowest[1]}"


def manifest_command(name):
    """`command` of the ClusterStorageContainer in a file of manifests/kserve."""
    with open(os.path.join(ROOT, "manifests", "kserve", name), encoding="utf-8") as file:
        return re.search(r"^    command: \[(.*?)\]", file.read(), re.MULTILINE)[1].split(", ")


# ---- every store ----------------------------------------------------------------------------------

def add_store(kind):
    needs, put = checks_through.STORES[kind]

    def row(h, *made):
        place, pod = put(h, *made), Pod(h)
        for path in filter(os.path.isfile, place.env.values()):  # credentials files are private: the pod's user must be able to read them
            os.chmod(path, 0o644)
            os.chmod(os.path.dirname(path), 0o755)
        try:
            found = pod.ok(place.env, "sluice+" + place.uri.replace("http://", "http:"), pod.mount)
        finally:
            place.stop()
        assert found == expected({"model.safetensors": checks_through.DATA}), found
    row.__name__ = f"kserve_reads_{kind}"
    row.__doc__ = f"{kind}: a container that KServe starts, behind sluice+, with the login of its environment."
    check(*needs)(row)


for each in checks_through.STORES:
    add_store(each)


@check("redis")
def kserve_reads_redis(h, redis):
    """redis: the same, as a file of tensors under the name in the URI."""
    source, pod = os.path.join(h.directory("kserve-redis"), "model.safetensors"), Pod(h)
    with open(source, "wb") as file:
        file.write(checks_through.DATA)
    h.sluice("convert", source, redis.uri("served")).expect(0)
    assert set(pod.ok({}, "sluice+" + redis.uri("served"), pod.mount)) == {"served"}


# ---- as KServe starts it --------------------------------------------------------------------------

@check("kserve_bucket", smoke=True)
def kserve_shaped_process(h, store):
    """Arguments, environment, user and directory as KServe's: the model alone, readable by another user."""
    pod = Pod(h)
    found = pod.ok(kserve_env(store), f"s3://{BUCKET}/model/", pod.mount)
    assert found == expected({"config.json": b"{}", "weights.bin": OBJECTS["model/weights.bin"], "sub/tokenizer.json": b"[1]"}), found
    assert sorted(os.listdir(pod.mount)) == ["config.json", "sub", "weights.bin"], os.listdir(pod.mount)
    for parent, _, files in os.walk(pod.mount):
        for name in files:
            assert stat.S_IMODE(os.stat(os.path.join(parent, name)).st_mode) == 0o644, name
    assert stat.S_IMODE(os.stat(os.path.join(pod.mount, "sub")).st_mode) == 0o755
    assert pod.ok(kserve_env(store), f"sluice+s3://{BUCKET}/model/", pod.mount) == found, "a second run changed the model"
    assert pod.ok(kserve_env(store), f"sluice-big+s3://{BUCKET}/tgz/", pod.mount)["1/weights.bin"][1]


@check("kserve_bucket")
def kserve_failure_is_the_last_line(h, store):
    """Every failure ends with 1, an empty stdout, and its cause in the last line and in the message."""
    cases = (
        ({"AWS_SECRET_ACCESS_KEY": "wrong"}, "model/", "SignatureDoesNotMatch"),
        ({}, "none/", "no model found"),
        ({"STORAGE_ALLOW_PATTERNS": "*.none"}, "model/", "STORAGE_ALLOW_PATTERNS"),
        ({"AWS_ENDPOINT_URL": "http://127.0.0.1:1", "S3_MAX_ATTEMPTS": "1"}, "model/", "127.0.0.1:1"),
        ({"STORAGE_CONFIG": '{"type": "s3", "access_key_id": 7}'}, "model/", "STORAGE_CONFIG: 'access_key_id'"),
        ({"CONFIDENTIAL_ENABLED": "true"}, "model/", "CONFIDENTIAL_ENABLED"),
        ({}, "evil/", "leads out of the archive"),
        ({}, "evil-link/", "has an empty, an absolute"),
        ({}, "broken/", "not a ZIP"),
    )
    for more, path, word in cases:
        pod = Pod(h)
        done = pod.run(kserve_env(store, **more), f"s3://{BUCKET}/{path}", pod.mount)
        last = done.stderr.rstrip("\n").split("\n")[-1]
        with open(pod.message) as file:
            message = file.read()
        assert done.returncode == 1 and not done.stdout, f"{path} {more}: {done.returncode} {done.stdout[:100]}"
        assert word in json.loads(last)["message"] and word in message, f"{path} {more}: {last} / {message}"
        assert store.secret not in done.stderr + message
        assert not [name for name in os.listdir(pod.mount) if name != ".sluice"], os.listdir(pod.mount)
    return f"{len(cases)} failures"


@check("kserve_bucket")
def kserve_strict_prefix(h, store):
    """--strict-prefix takes the object of this name or what lies in this folder, and no neighbour."""
    for path, names in (("model", {"config.json", "weights.bin", "sub/tokenizer.json"}), ("single", {"single"})):
        pod = Pod(h)
        found = pod.ok(kserve_env(store), "--strict-prefix", f"s3://{BUCKET}/{path}", pod.mount)
        assert set(found) == names, found
    pod = Pod(h)
    assert pod.run(kserve_env(store), "--strict-prefix", f"s3://{BUCKET}/mod", pod.mount).returncode == 1


@check("kserve_bucket")
def kserve_endpoint_without_scheme(h, store):
    """S3_ENDPOINT with S3_USE_HTTPS serves where AWS_ENDPOINT_URL is missing."""
    pod, environment = Pod(h), kserve_env(store)
    del environment["AWS_ENDPOINT_URL"]
    assert set(pod.ok(environment, f"s3://{BUCKET}/single", pod.mount)) == {"single"}


@check("kserve_bucket", "kserve_web")
def kserve_web_identity(h, store, web):
    """A role and a token, as the cluster's webhook gives them, instead of a key."""
    pod, token = Pod(h), os.path.join(h.directory("identity"), "token")
    with open(token, "w") as file:
        file.write("projected-token")
    os.chmod(os.path.dirname(token), 0o755)
    environment = kserve_env(store, AWS_ROLE_ARN="arn:aws:iam::123456789012:role/read-models", AWS_WEB_IDENTITY_TOKEN_FILE=token,
                             AWS_ENDPOINT_URL_STS=web.origin)
    del environment["AWS_ACCESS_KEY_ID"], environment["AWS_SECRET_ACCESS_KEY"]
    web.store, web.identity = store, (environment["AWS_ROLE_ARN"], "another")
    done = pod.run(environment, f"s3://{BUCKET}/single", pod.mount)
    assert done.returncode == 1 and "projected-token" not in done.stderr, done.stderr[-400:]
    web.identity = (environment["AWS_ROLE_ARN"], "projected-token")
    assert set(pod.ok(environment, f"s3://{BUCKET}/single", pod.mount)) == {"single"}


@check("nginx", "kserve_bucket")
def kserve_resumes_after_a_kill(h, nginx, store):
    """kill -9 in mid-load: what the container's next start does not fetch again; then nothing but the model remains."""
    path = os.path.join(nginx.root, "resumed.bin")
    with open(path, "wb") as file:
        for _ in range(12):
            file.write(os.urandom(8 << 20))
    pod, url = Pod(h), nginx.http + "/slow/resumed.bin"
    arguments = ("--connections", "2", url, pod.mount)
    process = subprocess.Popen(pod.command(*arguments), env=pod.environment({}), cwd="/", stdin=subprocess.DEVNULL,
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_for("a third of the file", lambda: nginx.sent_bytes("/slow/resumed.bin") > 32 << 20)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert os.listdir(pod.mount) == [".sluice"], os.listdir(pod.mount)
    done = pod.run({}, "--json", url, pod.mount)
    assert done.returncode == 0, done.stderr[-500:]
    load = json.loads(done.stdout)[0]["load"]
    assert load["resumed"] > 0, load
    assert sha256_file(os.path.join(pod.mount, "resumed.bin")) == sha256_file(path)
    assert os.listdir(pod.mount) == ["resumed.bin"]
    return f"{load['resumed'] / 1e6:.0f} of {load['bytes'] / 1e6:.0f} MB resumed"


@check("kserve_bucket", "nginx")
def kserve_volume_that_holds_the_model_once(h, store, nginx):
    """Started again over its own model on a memory volume with room for one: the model is replaced, not refused."""
    if os.getuid():
        raise Skip("a tmpfs can only be mounted by root")
    pod = Pod(h)
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m,mode=0777", "tmpfs", pod.mount]).returncode:
        raise Skip("no tmpfs can be mounted")
    h.mounts.append(pod.mount)
    store.put(BUCKET, "large/weights.bin", os.urandom(15 << 20))
    first = pod.ok(kserve_env(store), f"s3://{BUCKET}/large", pod.mount)
    assert pod.ok(kserve_env(store), f"s3://{BUCKET}/large", pod.mount) == first
    done = pod.run(kserve_env(store), f"s3://{BUCKET}/large/weights.bin", pod.mount)
    assert done.returncode == 0, done.stderr[-400:]
    with open(os.path.join(nginx.root, "weights.bin"), "wb") as file:
        file.write(os.urandom(15 << 20))
    pod.ok({}, nginx.http + "/weights.bin", pod.mount)
    assert sha256_file(os.path.join(pod.mount, "weights.bin")) == sha256_file(os.path.join(nginx.root, "weights.bin"))
    os.unlink(os.path.join(pod.mount, "weights.bin"))
    store.put(BUCKET, "volume-packed/model.tar", tar_of({f"{n}.bin": os.urandom(1 << 20) for n in range(9)}, "w"))
    packed = pod.ok(kserve_env(store), f"s3://{BUCKET}/volume-packed", pod.mount)
    assert pod.ok(kserve_env(store), f"s3://{BUCKET}/volume-packed", pod.mount) == packed and len(packed) == 9
    # archive and content together are larger than the volume
    for name, data in (("model.tar", tar_of({f"{n}.bin": os.urandom(5 << 20) for n in range(3)}, "w")),
                       ("model.zip", zip_of({f"{n}.bin": os.urandom(size) for n, size in enumerate((1 << 20, 14 << 20, 1))}))):
        store.put(BUCKET, f"eaten/{name}", data)
        for left in os.listdir(pod.mount):
            os.unlink(os.path.join(pod.mount, left))
        assert set(pod.ok(kserve_env(store), f"s3://{BUCKET}/eaten/{name}", pod.mount)) == {"0.bin", "1.bin", "2.bin"}, name
    store.put(BUCKET, "too-large/weights.bin", os.urandom(30 << 20))
    done = pod.run(kserve_env(store), f"s3://{BUCKET}/too-large", pod.mount)
    assert done.returncode == 1 and "tmpfs" in done.stderr, done.stderr[-400:]


@check("kserve_bucket", "minilm")
def kserve_decrypts_and_lays_out(h, store, model):
    """An encrypted .tensors, with the flags of the manifest, becomes safetensors with the same tensors."""
    source = os.path.join(model.directory, next(name for name in model.names if name.endswith(".safetensors")))
    key, sealed = os.path.join(h.directory("keys"), "key"), os.path.join(h.directory("keys"), "model.tensors")
    with open(key, "wb") as file:
        file.write(os.urandom(32))
    os.chmod(os.path.dirname(key), 0o755)
    os.chmod(key, 0o600)
    h.sluice("convert", source, sealed, "--encrypt", "--seal-key-file", key).expect(0)
    if os.getuid() == 0:
        os.chown(key, USER, USER)
    with open(sealed, "rb") as file:
        store.put(BUCKET, "sealed/model.tensors", file.read())
    pod = Pod(h)
    flags = [key if word == "/keys/key" else word for word in manifest_command("encrypted/tensors.yaml")[2:]]
    assert key in flags, flags
    found = pod.ok(kserve_env(store), *flags, f"sluice-sealed+s3://{BUCKET}/sealed", pod.mount)
    assert set(found) == {"model.safetensors"}, found
    first = h.sluice("inspect", "--json", "--digest", source).expect(0).json()["tensors"]
    second = h.sluice("inspect", "--json", "--digest", os.path.join(pod.mount, "model.safetensors")).expect(0).json()["tensors"]
    assert {t["name"]: t["sha256"] for t in first} == {t["name"]: t["sha256"] for t in second}
    wait_for("the model", lambda: os.listdir(pod.mount) == ["model.safetensors"])
