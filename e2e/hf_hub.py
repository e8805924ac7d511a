"""A hub of Hugging Face over files in memory, for sluice and for the hub's own client alike.

Answers as the real one does: a revision's commit, the tree in pages, a relative redirect for small files, signed links
of another host that expire for large ones, refusals with X-Error-Code, limits with RateLimit. A bucket has no revisions: its
tree matches the beginning of paths, and each link says which content it leads to.
"""
import hashlib
import http.server
import json
import threading
import time
import urllib.parse

PAGE = 3


def git_sha1(data):
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


class File:
    def __init__(self, data, large, xet=None):
        self.data, self.large, self.xet = data, large, xet  # xet: its hash there
        self.sha256, self.git = hashlib.sha256(data).hexdigest(), git_sha1(data)

    def entry(self, path):
        if not self.large:
            return {"type": "file", "oid": self.git, "size": len(self.data), "path": path}
        pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{self.sha256}\nsize {len(self.data)}\n".encode()
        return {"type": "file", "oid": git_sha1(pointer), "size": len(self.data), "path": path,
                "lfs": {"oid": self.sha256, "size": len(self.data), "pointerSize": len(pointer)},
                **({"xetHash": self.xet} if self.xet else {})}


class Servers:
    """A hub and the host that its links lead to; what was asked of them, and what came where it should not."""

    def __init__(self, hub_handler, cdn_handler):
        self.token = None  # who does not send it is refused
        self.requests, self.leaked = [], []
        self.links, self.oldest = 0, 0
        self.lock = threading.Lock()
        self.hub, self.cdn = self.serve(hub_handler), self.serve(cdn_handler)
        self.url = f"http://127.0.0.1:{self.hub.server_port}"
        self.cdn_url = f"http://localhost:{self.cdn.server_port}"

    def serve(self, handler):
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        server.hub = self
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return server

    def stop(self):
        for server in (self.hub, self.cdn):
            server.shutdown()
            server.server_close()


class Hub(Servers):
    """repos: {"org/name": {commit: {path: File}}}; refs: {"org/name": {"main": commit}}."""

    def __init__(self):
        self.repos, self.refs = {}, {}
        self.buckets = {}           # {"org/name": {path: File}}
        self.contents = {}          # that links to files of buckets lead to, by hash
        self.before_link = None     # called with the path before a link to a file of a bucket is given
        self.gated = set()          # repositories whose terms nobody has accepted
        self.refuse = []            # (status, headers) of the next requests to the hub
        self.cas, self.cas_seconds = None, 3600  # URL of the Xet store; how long its tokens are good
        super().__init__(HubHandler, CdnHandler)

    def commit(self, repo, files, revision="main"):
        """A new commit of all these files: {path: (bytes, large)}, or (bytes, large, Xet's hash)."""
        listed = {path: File(*file) for path, file in files.items()}
        text = json.dumps({path: file.sha256 for path, file in listed.items()}, sort_keys=True)
        commit = hashlib.sha1(text.encode()).hexdigest()
        self.repos.setdefault(repo, {})[commit] = listed
        self.refs.setdefault(repo, {})[revision] = commit
        return commit

    def keep(self, bucket, path, data, xet=None):
        """A file of a bucket, in the place of one that is there; without its hash in Xet one that tells contents apart."""
        self.buckets.setdefault(bucket, {})[path] = File(data, True, xet or hashlib.sha256(data).hexdigest())


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *words):
        pass

    def answer(self, status, headers=(), body=b""):
        self.send_response(status)
        for name, value in dict(headers).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def give(self, data, headers):
        """The bytes, or the range of them that is asked for."""
        wanted = self.headers.get("Range")
        if not wanted:
            return self.answer(200, headers, data)
        first, last = wanted.removeprefix("bytes=").split("-")
        begin, end = int(first), min(int(last) + 1 if last else len(data), len(data))
        if begin >= len(data):
            return self.answer(416, {"Content-Range": f"bytes */{len(data)}"})
        return self.answer(206, {**headers, "Content-Range": f"bytes {begin}-{end - 1}/{len(data)}"}, data[begin:end])

    def do_HEAD(self):
        self.do_GET()


class HubHandler(Handler):
    def do_POST(self):
        self.do_GET()

    def do_GET(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        hub, path = self.server.hub, urllib.parse.urlsplit(self.path).path
        with hub.lock:
            hub.requests.append(f"{self.command} {self.path}")
            refused = hub.refuse.pop(0) if hub.refuse else None
        if refused:
            return self.answer(*refused)
        given = self.headers.get("Authorization", "")
        if hub.token and given != f"Bearer {hub.token}":
            message = {"X-Error-Message": "Invalid credentials in Authorization header"} if given else {}
            return self.answer(401, message)
        parts = path.strip("/").split("/")
        if parts[:3] == ["api", "resolve-cache", "models"]:
            return self.give_small("/".join(parts[3:5]), parts[5], urllib.parse.unquote("/".join(parts[6:])))
        if parts[:2] == ["api", "models"]:
            return self.api("/".join(parts[2:4]), parts[4:])
        if parts[:2] == ["api", "buckets"]:
            return self.bucket("/".join(parts[2:4]), parts[4:], body)
        if parts[0] == "buckets" and len(parts) > 4 and parts[3] == "resolve":
            return self.resolve_kept("/".join(parts[1:3]), urllib.parse.unquote("/".join(parts[4:])))
        if len(parts) > 4 and parts[2] == "resolve":
            return self.resolve("/".join(parts[:2]), urllib.parse.unquote(parts[3]), "/".join(parts[4:]))
        return self.answer(404)

    def find(self, repo, revision):
        """The commit, or None after a refusal."""
        hub = self.server.hub
        if repo in hub.gated:
            self.answer(403 if hub.token else 401, {"X-Error-Code": "GatedRepo"})
        elif repo not in hub.repos:
            self.answer(404 if hub.token else 401, {"X-Error-Code": "RepoNotFound"})
        elif revision not in hub.repos[repo] and revision not in hub.refs[repo]:
            self.answer(404, {"X-Error-Code": "RevisionNotFound"})
        else:
            return hub.refs[repo].get(revision, revision)
        return None

    def api(self, repo, words):
        revision = urllib.parse.unquote(words[1]) if len(words) > 1 else "main"
        commit = self.find(repo, revision)
        if commit is None:
            return None
        files = self.server.hub.repos[repo][commit]
        if words and words[0] == "xet-read-token":
            return self.give_token()
        if not words or words[0] == "revision":
            siblings = [{"rfilename": path} for path in files]
            return self.json({"id": repo, "modelId": repo, "sha": commit, "private": False, "tags": [], "downloads": 0,
                              "likes": 0, "siblings": siblings})
        folder = urllib.parse.unquote("/".join(words[2:]))
        below = sorted(path for path in files if not folder or path.startswith(folder + "/"))
        query = urllib.parse.parse_qs(urllib.parse.urlsplit(self.path).query)
        at = int(query.get("cursor", ["0"])[0])
        link = {}
        if at + PAGE < len(below):
            link["Link"] = f"<{self.server.hub.url}/api/models/{repo}/tree/{commit}?recursive=true&cursor={at + PAGE}>; rel=\"next\""
        return self.json([files[path].entry(path) for path in below[at:at + PAGE]], link)

    def bucket(self, name, words, body):
        hub = self.server.hub
        if name not in hub.buckets:
            return self.answer(404 if hub.token else 401, {"X-Error-Code": "RepoNotFound"})
        files, word = hub.buckets[name], words[0] if words else ""
        entries = {path: {"type": "file", "path": path, "size": len(file.data), "xetHash": file.xet, "mtime": "2026-03-01T10:00:00.000Z",
                          "uploadedAt": "2026-03-01T10:00:01.000Z"} for path, file in files.items()}
        if word == "xet-read-token":
            return self.give_token()
        if word == "paths-info" and self.command == "POST":
            return self.json([entries[path] for path in json.loads(body)["paths"] if path in entries])
        if word != "tree":
            return self.json({"id": name, "private": False, "createdAt": "2026-03-01T10:00:00.000Z", "totalFiles": len(files),
                              "size": sum(len(file.data) for file in files.values())})
        prefix = urllib.parse.unquote("/".join(words[1:]))
        query = urllib.parse.parse_qs(urllib.parse.urlsplit(self.path).query)
        below, at = sorted(path for path in files if path.startswith(prefix)), int(query.get("cursor", ["0"])[0])
        link = {}
        if at + PAGE < len(below):
            where = f"{hub.url}/api/buckets/{name}/{urllib.parse.quote('/'.join(words))}"
            link["Link"] = f"<{where}?recursive=true&cursor={at + PAGE}>; rel=\"next\""
        return self.json([entries[path] for path in below[at:at + PAGE]], link)

    def resolve_kept(self, name, path):
        hub = self.server.hub
        if hub.before_link:
            hub.before_link(path)
        file = hub.buckets.get(name, {}).get(path)
        if file is None:
            return self.answer(404, {"X-Error-Code": "EntryNotFound"})
        with hub.lock:
            hub.links += 1
            number = hub.links
            hub.contents[file.xet] = file
        auth = f"{hub.url}/api/buckets/{name}/xet-read-token"
        return self.answer(302, {"X-Xet-Hash": file.xet, "X-Linked-Size": str(len(file.data)), "Link": f'<{auth}>; rel="xet-auth"',
                                 "Location": f"{hub.cdn_url}/xet/{file.xet}?signature=s3cret&link={number}"})

    def json(self, value, headers=()):
        self.answer(200, {"Content-Type": "application/json", **dict(headers)}, json.dumps(value).encode())

    def give_token(self):
        hub = self.server.hub
        if not hub.cas:
            return self.answer(404)
        end = int(time.time()) + hub.cas_seconds
        return self.json({"casUrl": hub.cas, "accessToken": "xet-s3cret", "exp": end},
                         {"X-Xet-Cas-Url": hub.cas, "X-Xet-Access-Token": "xet-s3cret", "X-Xet-Token-Expiration": str(end)})

    def resolve(self, repo, revision, quoted):
        hub, path = self.server.hub, urllib.parse.unquote(quoted)
        commit = self.find(repo, revision)
        if commit is None:
            return None
        file = hub.repos[repo][commit].get(path)
        headers = {"X-Repo-Commit": commit}
        if file is None:
            return self.answer(404, {**headers, "X-Error-Code": "EntryNotFound"})
        if not file.large:
            return self.answer(307, {**headers, "Location": f"/api/resolve-cache/models/{repo}/{commit}/{quoted}"})
        with hub.lock:
            hub.links += 1
            number = hub.links
        if file.xet:
            auth = f"{hub.url}/api/models/{repo}/xet-read-token/{commit}"
            headers.update({"X-Xet-Hash": file.xet, "Link": f'<{auth}>; rel="xet-auth"'})
        return self.answer(302, {**headers, "X-Linked-Etag": f'"{file.sha256}"', "X-Linked-Size": str(len(file.data)),
                                 "Location": f"{hub.cdn_url}/{repo}/{commit}/{quoted}?signature=s3cret&link={number}"})

    def give_small(self, repo, commit, path):
        file = self.server.hub.repos[repo][commit][path]
        self.give(file.data, {"X-Repo-Commit": commit, "ETag": f'"{file.git}"'})


class CdnHandler(Handler):
    def do_GET(self):
        hub, target = self.server.hub, urllib.parse.urlsplit(self.path)
        if self.headers.get("Authorization"):
            hub.leaked.append(self.path)
        if int(urllib.parse.parse_qs(target.query)["link"][0]) < hub.oldest:
            return self.answer(403)
        parts = target.path.strip("/").split("/")
        if parts[0] == "xet":
            return self.give(hub.contents[parts[1]].data, {"ETag": '"edge"'})
        file = hub.repos["/".join(parts[:2])][parts[2]][urllib.parse.unquote("/".join(parts[3:]))]
        return self.give(file.data, {"ETag": '"edge-%d"' % len(hub.leaked)})
