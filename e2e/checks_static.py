"""Static builds: one file that needs nothing around it."""
import os
import re
import shutil
import socket
import struct
import subprocess
import threading
import time

from harness import ROOT, Run, Skip, check, fixture, free_port, need_program, one_at_a_time, sha256_file, wait_for
from servers import share

ROOMS = ("storage/net", "packaging")
LATE = True
NAME = "sluice-e2e.test"  # in the server's certificate
SIZE_MAX = 12_000_000
MODEL = "tokenizer.json"
CA_PLACES = ["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/ca-bundle.pem",
             "/etc/ssl/cert.pem"]


@one_at_a_time("builds")
def static_build(h, kind):
    """The program as scripts/build --static makes it, stripped."""
    if subprocess.run([os.path.join(ROOT, "scripts", "deps"), "--check", "static"], capture_output=True).returncode:
        raise Skip("packages are missing: scripts/deps static")
    done = subprocess.run([os.path.join(ROOT, "scripts", "build"), "--static", kind, "--target", "sluice"],
                          stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode == 3:
        raise Skip(done.stderr.strip().splitlines()[-1])
    assert done.returncode == 0, (done.stdout + done.stderr)[-1500:]
    program = os.path.join(h.directory(f"static-{kind}"), "sluice")
    subprocess.run(["strip", "-o", program, os.path.join(ROOT, f"build-static-{kind}", "sluice")], check=True)
    return program


@fixture("static_full", expensive=True)
def static_full(h):
    return static_build(h, "full")


@fixture("static_most", expensive=True)
def static_most(h):
    return static_build(h, "most")


def needed(program):
    """The shared libraries that it names, and its loader."""
    shown = subprocess.run(["readelf", "-d", "-l", program], capture_output=True, text=True, check=True).stdout
    return re.findall(r"Shared library: \[(.*)\]", shown) + re.findall(r"program interpreter: (.*)\]", shown)


def run_program(h, command, env=None):
    start = time.monotonic()
    done = subprocess.run(command, env=h.environment(env), stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          timeout=300)
    return Run(done.returncode, done.stdout, done.stderr, time.monotonic() - start)


@check("static_full")
def static_full_is_one_file(h, program):
    """No loader, no shared library, under 12 MB, and it runs."""
    assert needed(program) == [], needed(program)
    assert "static-pie linked" in subprocess.run([need_program("file"), program], capture_output=True, text=True).stdout
    assert os.path.getsize(program) < SIZE_MAX, os.path.getsize(program)
    run_program(h, [program, "version"]).expect(0, "libcurl")
    return f"{os.path.getsize(program)} bytes"


@check("static_most")
def static_most_needs_libc_only(h, program):
    """Nothing but libc, libm and the loader."""
    others = [name for name in needed(program) if not re.search(r"^(libc|libm)\.so\.6$|/ld-linux|^ld-linux", name)]
    assert others == [], others
    assert os.path.getsize(program) < SIZE_MAX, os.path.getsize(program)
    run_program(h, [program, "version"]).expect(0, "libcurl")
    return f"{os.path.getsize(program)} bytes, {', '.join(needed(program))}"


@check("static_full", "static_most", "minilm")
def static_share_and_load(h, full, most, minilm):
    """Each shares a model over HTTP, and the other loads it."""
    for server, client in ((full, most), (most, full)):
        process, origin = share(h, minilm.directory, program=server)
        to = h.fresh()
        run_program(h, [client, "load", origin + "/model.safetensors", "--to", to, "--progress", "none"]).expect(0)
        assert sha256_file(os.path.join(to, "model.safetensors")) == minilm.sha256["model.safetensors"]
        h.stop(process)


@check("static_full", "static_most")
def static_asks_a_daemon(h, full, most):
    """Each runs a daemon that the other asks over its socket."""
    for server, client in ((full, most), (most, full)):
        folder = h.fresh("node")
        os.makedirs(folder)
        sock = os.path.join(folder, "s")
        with open(os.path.join(folder, "node.yaml"), "w") as file:
            file.write(f"apiVersion: sluice/v1alpha1\nkind: Node\ndirectory: {folder}/models\nbudgetBytes: 1GiB\n"
                       f"listen: '127.0.0.1:{free_port()}'\ncontrol: {{socket: {sock}}}\n")
        process = subprocess.Popen([server, "serve", file.name], env=h.environment(), stdin=subprocess.DEVNULL,
                                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        h.processes.append(process)
        wait_for("the daemon's first answer", lambda: run_program(h, [client, "node", "models", "--socket", sock]).code == 0, 30)
        run_program(h, [client, "node", "models", "--socket", sock]).expect(0, "of 1.00 GiB in use")
        h.stop(process)


# ---- an empty root ----------------------------------------------------------------------------------

class EmptyRoot:
    """A folder on the tmpfs that holds the program and what a check puts there; the root of its process."""

    def __init__(self, h, program):
        self.h, self.path = h, h.fresh("root")
        self.put("sluice", program, 0o755)

    def put(self, name, source, mode=0o644):
        path = self.path + "/" + name.lstrip("/")
        os.makedirs(os.path.dirname(path), exist_ok=True)
        shutil.copyfile(source, path)
        os.chmod(path, mode)

    def write(self, name, text):
        path = self.path + "/" + name.lstrip("/")
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w") as file:
            file.write(text)

    def load(self, url, env=None):
        enter = [need_program("chroot", "/usr/sbin/chroot"), self.path]
        if os.getuid() != 0:
            enter = [need_program("unshare"), "--user", "--map-root-user", *enter]
            if subprocess.run([*enter[:3], "true"], capture_output=True).returncode:
                raise Skip("neither root nor user namespaces")
        shutil.rmtree(self.path + "/out", ignore_errors=True)
        return run_program(self.h, [*enter, "/sluice", "load", url, "--to", "/out", "--attempts", "1", "--unreachable-seconds",
                                    "2", "--progress", "none"], env)

    def loaded(self, minilm):
        assert sha256_file(f"{self.path}/out/{MODEL}") == minilm.sha256[MODEL]


def model_url(nginx, minilm, name):
    """The URL of a small file, over TLS, at a host of that name."""
    shutil.copyfile(os.path.join(minilm.directory, MODEL), os.path.join(nginx.root, MODEL))
    return nginx.https.replace("127.0.0.1", name) + "/" + MODEL


@check("static_full", "nginx", "minilm")
def static_finds_certificates(h, program, nginx, minilm):
    """In an empty root: the CA in each distribution's place, in SSL_CERT_FILE and in SSL_CERT_DIR; without it refused."""
    url = model_url(nginx, minilm, NAME)
    for place in CA_PLACES:
        root = EmptyRoot(h, program)
        root.write("/etc/hosts", f"127.0.0.1 {NAME}\n")
        root.load(url).expect(7, "source.tls.caFile")
        root.put(place, nginx.ca)
        root.load(url).expect(0)
        root.loaded(minilm)
    root = EmptyRoot(h, program)
    root.write("/etc/hosts", f"127.0.0.1 {NAME}\n")
    root.put("/ca.pem", nginx.ca)
    root.load(url, {"SSL_CERT_FILE": "/ca.pem"}).expect(0)
    digest = subprocess.run(["openssl", "x509", "-hash", "-noout", "-in", nginx.ca], capture_output=True, text=True)
    root.put(f"/certs/{digest.stdout.strip()}.0", nginx.ca)
    root.load(url, {"SSL_CERT_DIR": "/certs"}).expect(0)
    root.loaded(minilm)


class NameServer:
    """Answers A questions for names over UDP at 127.0.0.53's neighbour, port 53; everything else does not exist."""
    ADDRESS = "127.0.0.59"

    def __init__(self, names):
        self.names, self.asked = names, []
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            self.socket.bind((self.ADDRESS, 53))
        except OSError as error:
            self.socket.close()
            raise Skip(f"port 53 of {self.ADDRESS}: {error.strerror}") from error
        self.thread = threading.Thread(target=self.serve, daemon=True)
        self.thread.start()

    def serve(self):
        while True:
            question, peer = self.socket.recvfrom(512)
            if len(question) < 12:
                return
            labels, at = [], 12
            while question[at]:
                labels.append(question[at + 1:at + 1 + question[at]].decode())
                at += 1 + question[at]
            end = at + 5
            kind = struct.unpack(">H", question[at + 1:at + 3])[0]
            name = ".".join(labels)
            self.asked.append(name)
            known = name in self.names
            answers = 1 if known and kind == 1 else 0
            reply = question[:2] + struct.pack(">HHHHH", 0x8180 if known else 0x8183, 1, answers, 0, 0) + question[12:end]
            if answers:
                reply += struct.pack(">HHHIH", 0xC00C, 1, 1, 5, 4) + socket.inet_aton("127.0.0.1")
            self.socket.sendto(reply, peer)

    def close(self):
        self.socket.sendto(b"", (self.ADDRESS, 53))
        self.thread.join(5)
        self.socket.close()


@check("static_full", "nginx", "minilm")
def static_resolves_names(h, program, nginx, minilm):
    """In an empty root: DNS with a cluster's search domains and ndots; foreign modules in nsswitch.conf do no harm."""
    short = NAME.split(".", maxsplit=1)[0]
    server = NameServer({NAME})
    try:
        root = EmptyRoot(h, program)
        root.put(CA_PLACES[0], nginx.ca)
        root.write("/etc/resolv.conf", f"nameserver {server.ADDRESS}\noptions ndots:5\n"
                   "search ns.svc.cluster.test svc.cluster.test cluster.test a.test test\n")
        root.write("/etc/nsswitch.conf", "hosts: mymachines resolve [!UNAVAIL=return] files myhostname dns\n")
        root.load(model_url(nginx, minilm, NAME)).expect(0)
        root.loaded(minilm)
        assert f"{NAME}.ns.svc.cluster.test" in server.asked, server.asked
        root.load(model_url(nginx, minilm, short)).expect(7, "is for another name")  # found by search
        assert NAME in server.asked[-10:], server.asked
        root.load(model_url(nginx, minilm, "no-such-host.test")).expect(7, "no-such-host.test")
    finally:
        server.close()
