"""Builds behind a proxy that looks into TLS: refused in one sentence that names the cause, and right with its authority."""
import hashlib
import io
import os
import socketserver
import ssl
import subprocess
import tempfile
import threading
import zipfile

from harness import ROOT, check, fixture, need_program

ROOMS = ("packaging",)
LATE = True
PACKAGE, VERSION = "nvidia-cuda-nvrtc-cu12", "12.9.86"
LIBRARY = b"not NVIDIA's library, but what this index gives for it\n"
# What of this machine's own arrangement would take the place of what is tried.
OWN = ("PIP_", "SSL_CERT", "REQUESTS_CA", "CURL_CA", "SLUICE_BUILD", "http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY",
       "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY", "all_proxy")


def wheel():
    name, out = PACKAGE.replace("-", "_"), io.BytesIO()
    info = f"{name}-{VERSION}.dist-info"
    files = {"nvidia/cuda_nvrtc/lib/libnvrtc.so.12": LIBRARY,
             f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {PACKAGE}\nVersion: {VERSION}\n".encode(),
             f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: e2e\nRoot-Is-Purelib: true\nTag: py3-none-any\n"}
    with zipfile.ZipFile(out, "w") as archive:
        for path, content in files.items():
            archive.writestr(path, content)
        archive.writestr(f"{info}/RECORD", "".join(f"{path},,\n" for path in [*files, f"{info}/RECORD"]))
    return f"{name}-{VERSION}-py3-none-any.whl", out.getvalue()


class Proxy(socketserver.ThreadingTCPServer):
    """Answers CONNECT itself, as any host, with a certificate that its own authority made for that name; behind every name
    is an index of Python packages that has one package. .url, .ca and .asked, the paths that were asked for."""
    daemon_threads = True

    def __init__(self, h):
        super().__init__(("127.0.0.1", 0), Connection)
        self.folder, self.asked, self.contexts, self.lock = h.directory("tls-proxy"), [], {}, threading.Lock()
        self.url, self.ca = f"http://127.0.0.1:{self.server_address[1]}", os.path.join(self.folder, "ca.pem")
        self.name, self.wheel = wheel()
        self.openssl("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=a company's own authority",
                     "-keyout", "ca.key", "-out", "ca.pem")
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def openssl(self, *command):
        subprocess.run([need_program("openssl"), *command], cwd=self.folder, check=True, capture_output=True)

    def context(self, host):
        with self.lock:
            if host not in self.contexts:
                with open(os.path.join(self.folder, "san"), "w") as file:
                    file.write(f"subjectAltName=DNS:{host}\n")
                self.openssl("req", "-newkey", "rsa:2048", "-nodes", "-subj", f"/CN={host}", "-keyout", "key", "-out", "request")
                self.openssl("x509", "-req", "-in", "request", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days",
                             "2", "-extfile", "san", "-out", "certificate")
                self.contexts[host] = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
                self.contexts[host].load_cert_chain(os.path.join(self.folder, "certificate"), os.path.join(self.folder, "key"))
            return self.contexts[host]

    def answer(self, path):
        """(type, body)"""
        if path.endswith(".whl"):
            return "application/octet-stream", self.wheel
        digest = hashlib.sha256(self.wheel).hexdigest()
        return "text/html", f'<!DOCTYPE html><html><body><a href="/{self.name}#sha256={digest}">{self.name}</a></body></html>'.encode()


class Connection(socketserver.StreamRequestHandler):
    def head(self, file):
        first = file.readline().decode(errors="replace").split()
        while file.readline().strip():
            pass
        return first

    def handle(self):
        first = self.head(self.rfile)
        if len(first) < 2 or first[0] != "CONNECT":
            return
        self.wfile.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        try:
            with self.server.context(first[1].split(":")[0]).wrap_socket(self.connection, server_side=True) as inside:
                file = inside.makefile("rwb")
                while len(asked := self.head(file)) >= 2:
                    self.server.asked.append(asked[1])
                    kind, body = self.server.answer(asked[1])
                    file.write(f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
                    file.flush()
        except OSError:
            pass  # who does not know the authority leaves


@fixture("tls_proxy")
def tls_proxy(h):
    return Proxy(h)


def environment(h, proxy, **more):
    """Of somebody behind the proxy, whose cache is empty."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(OWN)}
    return {**kept, "https_proxy": proxy.url, "PIP_CONFIG_FILE": os.devnull, "SLUICE_CACHE": tempfile.mkdtemp(dir=h.disk), **more}


def compiler(env):
    return subprocess.run([os.path.join(ROOT, "scripts", "cuda-compiler")], env=env, capture_output=True, text=True,
                          stdin=subprocess.DEVNULL, timeout=300)


@check("tls_proxy")
def build_behind_a_tls_proxy(h, proxy):
    """What a build fetches: the proxy's authority is refused, at once and with a sentence that names the option; with it all is well."""
    refused = compiler(environment(h, proxy))
    assert refused.returncode == 1, refused.stdout
    last = refused.stderr.strip().splitlines()[-1]
    assert "scripts/image" in last and "--ca FILE" in last and "authority that is not known" in last, refused.stderr
    assert proxy.asked == [], proxy.asked
    taken = compiler(environment(h, proxy, SLUICE_BUILD_CA=proxy.ca))
    assert taken.returncode == 0, taken.stderr
    with open(taken.stdout.strip().splitlines()[-1].removeprefix("cuda-compiler: "), "rb") as file:
        assert file.read() == LIBRARY
    gone = environment(h, proxy, https_proxy="http://127.0.0.1:1", PIP_RETRIES="1")
    gone["PATH"] = no_pauses(h) + ":" + gone["PATH"]
    unreachable = compiler(gone)
    assert unreachable.returncode == 1 and "cannot be reached" in unreachable.stderr.splitlines()[-1], unreachable.stderr
    return last


def no_pauses(h):
    """A folder with a sleep that does not."""
    folder = h.directory("no-pauses")
    os.symlink(need_program("true"), os.path.join(folder, "sleep"))
    return folder


@check("tls_proxy", "engine")
def image_behind_a_tls_proxy(h, proxy, docker):
    """The Dockerfile's part that fetches, behind the proxy: refused without --ca, built with it."""
    stand_in = os.path.join(h.directory("client"), "docker")
    with open(stand_in, "w") as file:  # the stage that fetches alone; the others do not ask the proxy
        file.write('#!/bin/sh\nfor word; do shift; [ "$word" != gpu ] || word=kernels; set -- "$@" "$word"; done\n'
                   f'exec {docker.client} "$@"\n')
    os.chmod(stand_in, 0o755)
    tag = "localhost/sluice:e2e-proxy"
    env = environment(h, proxy, DOCKER_HOST=docker.env["DOCKER_HOST"], DOCKER=stand_in)
    build = [os.path.join(ROOT, "scripts", "image"), "--target", "gpu", "--tag", tag, "--network", "host"]

    def make(*arguments):
        return subprocess.run([*build, *arguments], env=env, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=900)
    refused = make()
    assert refused.returncode != 0 and "--ca FILE" in refused.stderr and "authority that is not known" in refused.stderr, \
        refused.stderr[-2000:]
    wrong = make("--ca", os.devnull)
    assert wrong.returncode == 1 and "is not a PEM file" in wrong.stderr, wrong.stderr
    taken = make("--ca", proxy.ca)
    assert taken.returncode == 0, taken.stderr[-2000:]
    made = docker.call("run", "--rm", "--network", "host", tag, "cat", f"/src/.cache/cuda/{VERSION}/nvidia/cuda_nvrtc/lib/libnvrtc.so.12")
    assert made.encode() == LIBRARY, made
    return f"{len(proxy.asked)} requests"
