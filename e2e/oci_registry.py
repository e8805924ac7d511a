"""A registry over blobs in memory that looks at everything: tokens by repository, Accept, digests, signed links that expire.

Answers as distribution does, with a token service of its own and blobs at another host. `mode` is "token", "basic" or "open".
"""
import base64
import hashlib
import http.server
import json
import threading
import urllib.parse

OCI = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"
DOCKER = "application/vnd.docker.distribution.manifest.v2+json"
RAW = "application/vnd.cncf.model.weight.v1.raw"
TITLE = "org.opencontainers.image.title"


def digest_of(data):
    return "sha256:" + hashlib.sha256(data).hexdigest()


class Registry:
    def __init__(self, mode="token", login=None, redirect=True):
        self.mode, self.login, self.redirect = mode, login, redirect
        self.blobs, self.manifests, self.tags = {}, {}, {}
        self.tokens, self.given, self.links = {}, 0, 0
        self.oldest_token, self.oldest_link = 0, 0  # older ones have expired
        self.identity, self.lifetime = None, 300
        self.ranges = True
        self.referrers = False      # it knows what refers to a manifest
        self.refuse = []            # (status, headers, body) of the next requests
        self.requests, self.leaked = [], []
        self.lock = threading.Lock()
        self.api, self.cdn = self.serve(ApiHandler), self.serve(CdnHandler)
        self.host = f"127.0.0.1:{self.api.server_port}"
        self.url = f"http://{self.host}"

    def serve(self, handler):
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        server.registry = self
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return server

    def stop(self):
        for server in (self.api, self.cdn):
            server.shutdown()
            server.server_close()

    def blob(self, data):
        self.blobs[digest_of(data)] = data
        return digest_of(data)

    def push(self, repo, tag, document, media=OCI):
        text = json.dumps(document).encode()
        self.manifests[repo, digest_of(text)] = (text, media)
        self.tags[repo, tag] = digest_of(text)
        return digest_of(text)

    def layer(self, data, media=RAW, **annotations):
        found = {"mediaType": media, "digest": self.blob(data), "size": len(data)}
        return {**found, "annotations": annotations} if annotations else found

    def artifact(self, repo, tag, files, key=TITLE):
        """A manifest of files with names: {name: bytes}."""
        layers = [self.layer(data, **{key: name}) for name, data in files.items()]
        return self.push(repo, tag, {"schemaVersion": 2, "mediaType": OCI, "layers": layers,
                                     "config": {"mediaType": "application/vnd.oci.empty.v1+json", "digest": self.blob(b"{}"), "size": 2}})


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def reply(self, status, body=b"", headers=None):
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def ranged(self, data, headers):
        asked = self.headers.get("Range")
        if not asked or not self.server.registry.ranges:
            return self.reply(200, data, headers)
        first, _, last = asked.split("=")[1].partition("-")
        begin, end = int(first), min(int(last), len(data) - 1)
        if begin >= len(data):
            return self.reply(416, b"", {"Content-Range": f"bytes */{len(data)}"})
        return self.reply(206, data[begin:end + 1], {**headers, "Content-Range": f"bytes {begin}-{end}/{len(data)}"})

    def error(self, status, code, headers=None):
        self.reply(status, json.dumps({"errors": [{"code": code, "message": code.lower().replace("_", " ")}]}).encode(), headers)


class ApiHandler(Handler):
    def challenge(self, repo):
        registry = self.server.registry
        if registry.mode == "basic":
            return self.error(401, "UNAUTHORIZED", {"WWW-Authenticate": 'Basic realm="a registry"'})
        return self.error(401, "UNAUTHORIZED", {"WWW-Authenticate": f'Bearer realm="{registry.url}/token",service="a, registry",'
                                                                    f'scope="repository:{repo}:pull",error="invalid_token"'})

    def basic(self):
        kind, _, text = self.headers.get("Authorization", "").partition(" ")
        return base64.b64decode(text).decode() if kind == "Basic" else None

    def let_in(self, repo):
        registry, sent = self.server.registry, self.headers.get("Authorization", "")
        if registry.mode == "open":
            return True
        if registry.mode == "basic":
            return self.basic() == registry.login
        with registry.lock:
            number, of = registry.tokens.get(sent.removeprefix("Bearer "), (-1, ""))
        return number >= registry.oldest_token and of == repo

    def give_token(self, query, form=None):
        registry = self.server.registry
        if form is not None:
            if form.get("refresh_token") != [registry.identity]:
                return self.reply(401, b'{"error": "invalid_grant"}')
            query = form
        elif registry.login and self.basic() != registry.login:
            return self.error(401, "UNAUTHORIZED")
        scope = query["scope"][0].split(":")
        assert query["service"] == ["a, registry"] and scope[0] == "repository" and scope[2] == "pull", query
        with registry.lock:
            registry.given += 1
            token = f"t0ken-{registry.given}"
            registry.tokens[token] = (registry.given, scope[1])
        return self.reply(200, json.dumps({"token": token, "expires_in": registry.lifetime}).encode())

    def do_POST(self):
        form = urllib.parse.parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
        self.server.registry.requests.append(f"POST {self.path}")
        self.give_token({}, form)

    def do_GET(self):
        registry = self.server.registry
        url = urllib.parse.urlparse(self.path)
        with registry.lock:
            registry.requests.append(f"GET {self.path}")
            refusal = registry.refuse.pop(0) if registry.refuse else None
        if refusal:
            return self.reply(refusal[0], refusal[2], refusal[1])
        if url.path == "/token":
            return self.give_token(urllib.parse.parse_qs(url.query))
        repo, kind, name = url.path.removeprefix("/v2/").rsplit("/", 2)
        if not self.let_in(repo):
            return self.challenge(repo)
        if kind == "referrers" and registry.referrers:
            return self.refer(repo, name)
        return self.manifest(repo, name) if kind == "manifests" else self.send_blob(repo, name)

    def refer(self, repo, digest):
        found = []
        for (place, name), (text, media) in self.server.registry.manifests.items():
            document = json.loads(text)
            if place == repo and document.get("subject", {}).get("digest") == digest:
                found.append({"mediaType": media, "digest": name, "size": len(text), "artifactType": document.get("artifactType"),
                              "annotations": document.get("annotations", {})})
        self.reply(200, json.dumps({"schemaVersion": 2, "mediaType": INDEX, "manifests": found}).encode(), {"Content-Type": INDEX})

    def manifest(self, repo, name):
        registry = self.server.registry
        digest = registry.tags.get((repo, name), name)
        text, media = registry.manifests.get((repo, digest), (None, None))
        if text is None or media not in self.headers.get("Accept", ""):
            return self.error(404, "MANIFEST_UNKNOWN")
        return self.reply(200, text, {"Content-Type": media, "Docker-Content-Digest": digest})

    def send_blob(self, repo, name):
        registry = self.server.registry
        if name not in registry.blobs:
            return self.error(404, "BLOB_UNKNOWN")
        if not registry.redirect:
            return self.ranged(registry.blobs[name], {"ETag": f'"{name}"'})
        with registry.lock:
            registry.links += 1
            link = registry.links
        return self.reply(307, b"", {"Location": f"http://localhost:{registry.cdn.server_port}/{name}?X-Signature=s3cret-{link}"})


class CdnHandler(Handler):
    def do_GET(self):
        registry = self.server.registry
        name, _, query = self.path[1:].partition("?X-Signature=s3cret-")
        if "Authorization" in self.headers:
            registry.leaked.append(self.headers["Authorization"])
        if int(query) < registry.oldest_link:
            return self.reply(403, b"<Error>expired</Error>")
        return self.ranged(registry.blobs[name], {"ETag": '"another"'})
