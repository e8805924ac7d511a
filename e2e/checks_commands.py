"""The commands for people against real servers: ls, doctor, init, plan --format pod, load, status and rm; and each mistake that a first
hour brings, made once for real: the exit code, and the advice."""
import ctypes.util
import datetime
import http.server
import os
import re
import shutil
import ssl
import subprocess
import sys
import threading

import checks_oci
from checks_hf import files_of
from harness import ROOT, Skip, check, free_port, need_program

ROOMS = ("tools/cli", "storage/net", "storage/http", "storage/s3", "storage/hf", "storage/oci", "model/plan", "load/publish", "python")
BUCKET = "commands"
FILES = {name: data for name, (data, _) in files_of(2).items() if data and "%" not in name}
ONE = "model.safetensors"
DAY = 86400
QUICK = ("--attempts", "2", "--unreachable-seconds", "0")


# ---- what is there, before and after --------------------------------------------------------------

def a_life(h, uri, env, endpoint, listed=len(FILES)):
    """doctor, ls, a spec, a pod, a load from that spec, status, rm."""
    h.sluice("doctor", uri, env=env).expect(0, f"ok    endpoint       {endpoint}" if endpoint else "ok    source", "ok    connection",
                                            "ok    object" if listed == 1 else "ok    listing")
    shown = h.sluice("ls", uri, env=env).expect(0, ONE, "safetensors", f"{listed} object")
    assert len(shown.out.splitlines()) == listed + 2, shown.out
    rows = h.sluice("ls", uri, "--json", env=env).expect(0).json()
    rows = rows if isinstance(rows, list) else [rows]
    sizes = {os.path.basename(row["name"]): row["bytes"] for row in rows}
    assert sizes[ONE] == len(FILES[ONE]), sizes
    assert all(row["etag"] or row["version"] for row in rows), rows

    to = h.fresh("life")
    spec = os.path.join(h.disk, f"life-{h.serial}.yaml")
    with open(spec, "w", encoding="utf-8") as file:
        file.write(h.sluice("init", uri, "--to", to, "--name", "life", env=env).expect(0, "# yaml-language-server: $schema=", uri).out)
    pod = h.sluice("plan", uri, "--format", "pod", env=env).expect(0, uri).out
    limit = int(re.search(r"limits: \{memory: (\d+)Mi\}", pod)[1])
    assert limit << 20 > sum(sizes.values()), pod
    h.sluice("status", to, env=env).expect(4)
    h.sluice("load", spec, "--progress", "none", env=env).expect(0, "'life' is in")
    assert sorted(name for name in os.listdir(to) if name != ".sluice") == sorted(sizes)
    state = h.sluice("status", to, "--json", env=env).expect(0).json()
    assert state["state"] == "published" and state["files"] == len(sizes), state
    h.sluice("verify", to, env=env).expect(0)
    h.sluice("rm", to, env=env).expect(0, "removed life")
    assert not os.path.exists(to)
    return f"{len(sizes)} objects, a pod of {limit} MiB"


def s3_model(store):
    store.make_bucket(BUCKET)
    for name, data in FILES.items():
        store.put(BUCKET, f"m/{name}", data)
    return f"s3://{BUCKET}/m/"


@check("versitygw")
def commands_on_s3(h, store):
    """A prefix in a bucket."""
    uri = s3_model(store)
    h.sluice("ls", uri.rstrip("/"), env=store.env()).expect(0, f"{len(FILES)} objects")  # the slash may be left out
    h.sluice("doctor", uri, env=store.env()).expect(0, "ok    credentials    the environment")
    return a_life(h, uri, store.env(), store.endpoint)


@check("nginx")
def commands_on_http(h, nginx):
    """One object of a web server, which has no listing."""
    with open(os.path.join(nginx.root, ONE), "wb") as file:
        file.write(FILES[ONE])
    return a_life(h, f"{nginx.http}/{ONE}", None, "", 1)


@check("hub")
def commands_on_a_hub(h, hub):
    """A repository of a hub."""
    hub.commit("org/commands", {name: (data, name == ONE) for name, data in FILES.items()})
    return a_life(h, "hf://org/commands", {"HF_ENDPOINT": hub.url}, hub.url)


@check("docker_registry")
def commands_on_a_registry(h, host):
    """An artifact of files in distribution's own server."""
    checks_oci.push(host, "org/commands", "v1", FILES)
    return a_life(h, f"oci://{host}/org/commands:v1", {"HOME": "/nonexistent"}, f"http://{host}")


# ---- mistakes -------------------------------------------------------------------------------------

def refused(h, uri, code, *words, env=None, around=(), doctor=True, flags=()):
    """load and doctor end with the same code, and both say the words; ls too, where it asks for the same."""
    to = h.fresh("refused")
    commands = [["load", uri, "--to", to, "--progress", "none", *QUICK, *flags], ["ls", uri, *QUICK, *flags]]
    commands += [["doctor", uri, *flags]] if doctor else []
    for command in commands:
        done = subprocess.run([*around, h.program, *command], env=h.environment(env), capture_output=True, text=True, stdin=subprocess.DEVNULL,
                              timeout=300)
        said = done.stdout + done.stderr
        assert done.returncode == code, f"{command}: {done.returncode}, not {code}: {said[-800:]}"
        for word in words:
            assert word in said, f"{command}: no '{word}' in: {said[-800:]}"
        assert command[0] != "doctor" or "FAIL  " in said, said
    assert not os.path.exists(to), "a load that brought nothing left its directory"


@check("versitygw")
def mistakes_at_s3(h, store):
    """Wrong bucket, wrong key, wrong secret, unknown access key, forgotten slash: code and advice."""
    uri, env = s3_model(store), store.env()
    refused(h, "s3://no-such-bucket/m/", 4, "bucket", "no-such-bucket", env=env)
    refused(h, f"s3://{BUCKET}/m/nothing", 4, "m/nothing", env=env)
    refused(h, uri, 3, "the secret key does not fit the access key: set both again", "(credentials: the environment)", env=dict(env, AWS_SECRET_ACCESS_KEY="wrong"))
    refused(h, uri, 3, "the store does not know this access key: check that", "(credentials: the environment)", env=dict(env, AWS_ACCESS_KEY_ID="NOBODY"))
    h.load(uri.rstrip("/"), h.fresh(), env=env).expect(4, f"objects below '{uri}': add the slash")


@check()
def mistakes_in_addresses(h):
    """A port that nobody listens on, a name that does not exist."""
    refused(h, f"http://127.0.0.1:{free_port()}/m", 7, "connection refused", "check the name, the port")
    refused(h, "http://sluice-e2e.invalid/m", 7, "sluice-e2e.invalid", "check")


@check()
def mistake_no_network(h):
    """In a network namespace without a way out: the kernel's reason is in the message."""
    around = [need_program("unshare"), "--user", "--map-root-user", "--net"]
    if subprocess.run([*around, "true"], capture_output=True).returncode:
        raise Skip("may not make a network namespace here")
    refused(h, "http://192.0.2.1/m", 7, "no route to it", "the network", around=around)


@check()
def mistakes_of_the_python_package(h):
    """A SLUICE_LIBRARY that is not there, a library that cannot be opened, none at all: an ImportError of one sentence, with the reason."""
    place = h.directory("package")
    shutil.copytree(os.path.join(ROOT, "python", "sluice"), os.path.join(place, "sluice"), ignore=shutil.ignore_patterns("*.so*", "__pycache__"))

    def imported(**env):
        done = subprocess.run([sys.executable, "-c", "import sluice"], capture_output=True, text=True, cwd=place,
                              env=dict(h.environment(env), PYTHONDONTWRITEBYTECODE="1"))
        assert done.returncode == 1, done
        return done.stderr.strip().splitlines()[-1]
    said = imported(SLUICE_LIBRARY="/nonexistent/libsluice.so.0")
    assert said.startswith("ImportError: cannot open the library that SLUICE_LIBRARY names: /nonexistent/libsluice.so.0: "), said
    if not ctypes.util.find_library("sluice"):
        said = imported()
        assert "libsluice.so.0 is not found: install it" in said, said
    with open(os.path.join(place, "sluice", "libsluice.so.0"), "w") as file:
        file.write("not a library")
    said = imported()
    assert said.startswith("ImportError: cannot open the library of this package: ") and "libsluice.so.0" in said, said


class Certificates:
    """An authority of its own, and https servers with certificates from it."""

    def __init__(self, h):
        self.dir, self.openssl = h.directory("certificates"), need_program("openssl")
        self.call("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "30", "-subj", "/CN=sluice e2e commands", "-keyout", "ca.key", "-out", "ca.pem")
        self.ca = os.path.join(self.dir, "ca.pem")
        open(os.path.join(self.dir, "index"), "w").close()
        with open(os.path.join(self.dir, "ca.conf"), "w") as file:
            file.write("[ca]\ndefault_ca=own\n[own]\ndatabase=index\nnew_certs_dir=.\nrand_serial=yes\ndefault_md=sha256\npolicy=any\n"
                       "unique_subject=no\n[any]\ncommonName=supplied\n")

    def call(self, *command):
        done = subprocess.run([self.openssl, *command], cwd=self.dir, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr

    def serve(self, name, begin_days, end_days, alternative="IP:127.0.0.1"):
        """The origin of a server whose certificate is good between these days from now."""
        def when(days):
            return (datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(days=days)).strftime("%Y%m%d%H%M%SZ")
        self.call("req", "-newkey", "rsa:2048", "-nodes", "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.csr")
        with open(os.path.join(self.dir, f"{name}.ext"), "w") as file:
            file.write(f"subjectAltName={alternative}\n")
        self.call("ca", "-batch", "-notext", "-config", "ca.conf", "-cert", "ca.pem", "-keyfile", "ca.key", "-in", f"{name}.csr",
                  "-startdate", when(begin_days), "-enddate", when(end_days), "-extfile", f"{name}.ext", "-out", f"{name}.pem")
        server = QuietServer(("127.0.0.1", 0), Quiet)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(os.path.join(self.dir, f"{name}.pem"), os.path.join(self.dir, f"{name}.key"))
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return f"https://127.0.0.1:{server.server_port}"


class QuietServer(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_):
        """A client that does not trust it."""


class Quiet(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(404)
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_HEAD = do_GET

    def log_message(self, *_):
        pass


@check()
def mistakes_of_certificates(h):
    """An authority that is not known, a certificate that has expired, is of tomorrow or for another name, a CA file that is not there."""
    own = Certificates(h)
    trusted = {"SSL_CERT_FILE": own.ca}
    good = own.serve("good", -1, 1)
    h.sluice("doctor", f"{good}/m", env=trusted).expect(4, "TLS certificate trusted by")
    refused(h, f"{good}/m", 7, "set source.tls.caFile to a file with the issuer's certificate")
    refused(h, f"{own.serve('expired', -3, -1)}/m", 7, "has expired: renew it on the server", env=trusted)
    refused(h, f"{own.serve('early', 1, 3)}/m", 7, "is not valid yet: set this machine's clock", env=trusted)
    refused(h, f"{own.serve('other', -1, 1, 'DNS:other.test')}/m", 7, "is for another name", env=trusted)
    refused(h, f"{good}/m", 7, "/nonexistent.pem", "SSL_CERT_FILE", env={"SSL_CERT_FILE": "/nonexistent.pem"}, doctor=False)
    h.sluice("doctor", f"{good}/m", env={"SSL_CERT_FILE": "/nonexistent.pem"}).expect(2, "cannot read '/nonexistent.pem' (from SSL_CERT_FILE)")


def turned_clock(h, seconds):
    library = os.path.join(h.directory("clock"), "clock.so")
    subprocess.run([need_program("cc"), "-shared", "-fPIC", os.path.join(ROOT, "e2e", "clock.c"), "-o", library, "-ldl"], check=True)
    return {"LD_PRELOAD": library, "CLOCK_SECONDS": str(seconds)}


@check("versitygw")
def mistake_of_the_clock(h, store):
    """A clock that is an hour off: doctor says so, and how far; a load learns the store's time and signs by that. Years: TLS fails."""
    uri = s3_model(store)
    for seconds, way in ((3600, "ahead of"), (-3600, "behind")):
        env = dict(store.env(), **turned_clock(h, seconds))
        h.sluice("doctor", uri, env=env).expect(3, "FAIL  server's clock", f"s {way} the server's: set it")
        h.load(uri, h.fresh(), env=env).expect(0)
    own = Certificates(h)
    origin = own.serve("today", -1, 1)
    refused(h, f"{origin}/m", 7, "has expired", "this machine's clock if it is wrong", env=dict(turned_clock(h, 400 * DAY), SSL_CERT_FILE=own.ca))


@check("versitygw")
def mistake_full_tmpfs(h, store):
    """A tmpfs that somebody else has filled: 6, with what is free and what is needed; status says that nothing is there."""
    if os.getuid():
        raise Skip("needs root to mount a tmpfs")
    uri, mount = s3_model(store), h.fresh("full")
    os.mkdir(mount)
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", mount], capture_output=True).returncode:
        raise Skip("may not mount a tmpfs here")
    h.mounts.append(mount)
    with open(os.path.join(mount, "others"), "wb") as file:
        file.write(b"x" * (1 << 20))
    to = os.path.join(mount, "m")
    run = h.load(uri, to, env=store.env()).expect(6, "free")
    h.sluice("status", to).expect(4)
    assert os.listdir(mount) == ["others"], os.listdir(mount)
    return run.err.strip().splitlines()[-1][:160]
