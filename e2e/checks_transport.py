"""TLS, redirects, credentials over HTTP, proxies."""
import http.client
import os
import socketserver
import threading
import urllib.parse

from checks_faults import refused
from harness import check, sha256_file

ROOMS = ("storage/net", "storage/http")
CONTENT = bytes(range(256)) * 50_000  # 12.8 MB: several ranges


def published_file(h, nginx):
    path = os.path.join(nginx.root, "transport.bin")
    if not os.path.exists(path):
        with open(path, "wb") as file:
            file.write(CONTENT)
    return sha256_file(path)


def loads(h, uri, digest, *arguments, env=None):
    to = h.fresh()
    h.load(uri, to, *arguments, env=env).expect(0)
    assert sha256_file(os.path.join(to, "transport.bin")) == digest


@check("nginx", smoke=True)
def tls_with_own_ca(h, nginx):
    """caFile and SSL_CERT_FILE are each enough, whatever AWS_CA_BUNDLE says, which is of S3; verify: false is, too."""
    digest, url = published_file(h, nginx), nginx.https + "/transport.bin"
    loads(h, url, digest, "--set", f"source.tls.caFile={nginx.ca}")
    loads(h, url, digest, env={"SSL_CERT_FILE": nginx.ca})
    loads(h, url, digest, env={"SSL_CERT_FILE": nginx.ca, "AWS_CA_BUNDLE": "/nonexistent"})
    loads(h, url, digest, "--set", "source.tls.verify=false")


@check("nginx")
def tls_without_it_is_refused(h, nginx):
    """An unknown CA: 7, with what to do."""
    published_file(h, nginx)
    run = refused(h, nginx.https + "/transport.bin", 7)
    assert "caFile" in run.err or "certificate" in run.err, run.err


@check("nginx")
def netrc_is_used(h, nginx):
    """User and password for one host from ~/.netrc; without: 3."""
    digest = published_file(h, nginx)
    url, home = nginx.http + "/private/transport.bin", h.directory("netrc-home")
    with open(os.path.join(home, ".netrc"), "w") as file:
        file.write("machine 127.0.0.1 login reader password sesame\n")
    os.chmod(os.path.join(home, ".netrc"), 0o600)
    refused(h, url, 3)
    loads(h, url, digest, env={"HOME": home})


@check("nginx")
def redirects_keep_secrets(h, nginx):
    """A redirect to another port is followed; the bearer token stays behind."""
    digest = published_file(h, nginx)
    token = os.path.join(h.disk, "token")
    with open(token, "w") as file:
        file.write("very-secret-token\n")
    before = len(nginx.log_lines())
    loads(h, nginx.http + "/moved/transport.bin", digest, "--set", f"source.http.bearerTokenFile={token}")
    lines = nginx.log_lines()[before:]
    there = [line for line in lines if line[4] == "/transport.bin"]
    port = nginx.other.rsplit(":", 1)[1]
    assert there and all(line[0] == port for line in there), lines
    assert not any("very-secret" in " ".join(line) for line in there), "the token was sent to another origin"


class Proxy(socketserver.StreamRequestHandler):
    """A forward proxy for plain GETs in absolute form, one answer per connection."""
    seen = []

    def handle(self):
        line = self.rfile.readline().decode()
        headers = {}
        while (header := self.rfile.readline().decode().strip()):
            name, _, value = header.partition(":")
            headers[name.lower()] = value.strip()
        if not line.startswith("GET http://"):
            self.wfile.write(b"HTTP/1.1 405 No\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            return
        url = urllib.parse.urlsplit(line.split()[1])
        Proxy.seen.append(url.path)
        onward = http.client.HTTPConnection(url.hostname, url.port, timeout=60)
        onward.request("GET", url.path, headers={key: value for key, value in headers.items()
                                                 if not key.startswith("proxy-") and key != "connection"})
        answer = onward.getresponse()
        body = answer.read()
        kept = "".join(f"{name}: {value}\r\n" for name, value in answer.getheaders() if name.lower() != "connection")
        self.wfile.write(f"HTTP/1.1 {answer.status} {answer.reason}\r\n{kept}Connection: close\r\n\r\n".encode() + body)
        onward.close()


class Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = daemon_threads = True


@check("nginx")
def proxy_is_used(h, nginx):
    """http_proxy carries the requests; no_proxy does not."""
    digest = published_file(h, nginx)
    with Server(("127.0.0.1", 0), Proxy) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        env = {"http_proxy": f"http://127.0.0.1:{server.server_address[1]}"}
        loads(h, nginx.http + "/transport.bin", digest, env=env)
        seen = len(Proxy.seen)
        assert seen >= 1, "no request came through the proxy"
        loads(h, nginx.http + "/transport.bin", digest, env=dict(env, no_proxy="127.0.0.1"))
        assert len(Proxy.seen) == seen, "no_proxy was not obeyed"
        server.shutdown()
    return f"{seen} requests through the proxy"
