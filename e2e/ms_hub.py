"""A ModelScope hub over files in memory, for sluice and for the hub's own client alike.

Answers as the real one does: a listing that is cut off at 3000 entries, small files whole whatever range is asked for,
large ones behind links of another host that expire, refusals as JSON.
"""
import json
import urllib.parse

from hf_hub import File, Handler, Servers

LISTED_MAX = 3000


class Hub(Servers):
    """repos: {"org/name": {revision: {path: File}}}."""

    def __init__(self):
        self.repos = {}
        super().__init__(HubHandler, CdnHandler)

    def put(self, repo, files, revision="master"):
        """All files of a revision: {path: (bytes, large)}."""
        self.repos.setdefault(repo, {})[revision] = {path: File(*file) for path, file in files.items()}


class HubHandler(Handler):
    def say(self, status, body):
        self.answer(status, {"Content-Type": "application/json"}, json.dumps(body).encode())

    def refuse(self, status, message):
        self.say(status, {"Code": 10010205001, "Message": message, "Success": False})

    def do_GET(self):
        hub, target = self.server.hub, urllib.parse.urlsplit(self.path)
        query = {name: values[0] for name, values in urllib.parse.parse_qs(target.query).items()}
        parts = target.path.split("/")
        with hub.lock:
            hub.requests.append(f"{self.command} {self.path}")
        if len(parts) < 6 or parts[1:4] != ["api", "v1", "models"]:
            return self.refuse(404, "no such page")
        repo = hub.repos.get("/".join(parts[4:6]))
        let_in = hub.token is None or (self.headers.get("Authorization") == f"Bearer {hub.token}"
                                       and f"m_session_id={hub.token}" in self.headers.get("Cookie", ""))
        if not repo or not let_in:
            return self.refuse(404, "the repository is not there")
        what = "/".join(parts[6:])
        if what in ("", "revisions"):
            branches = [{"Revision": name, "CreatedAt": 1} for name in repo]
            return self.say(200, {"Code": 200, "Success": True, "Data": {"RevisionMap": {"Branches": branches, "Tags": []}}})
        files = repo.get(query.get("Revision", "master"))
        if files is None:
            return self.refuse(404, "no such revision")
        if what == "repo/files":
            return self.list(files, query)
        file = files.get(query.get("FilePath"))
        if what != "repo" or file is None:
            return self.refuse(404, "no such file")
        if not file.large:
            return self.answer(200, {}, file.data)
        with hub.lock:
            hub.links += 1
            number = hub.links
        return self.answer(302, {"Location": f"{hub.cdn_url}/{file.sha256}?signature=s3cret&link={number}"})

    def list(self, files, query):
        root, recursive = query.get("Root", "").strip("/"), query.get("Recursive") == "True"
        below = root + "/" if root else ""
        entries = {}
        for path, file in files.items():
            if not path.startswith(below):
                continue
            names = path[len(below):].split("/")
            for depth in range(1, len(names) if recursive else min(len(names), 2)):
                folder = below + "/".join(names[:depth])
                entries[folder] = {"Type": "tree", "Name": names[depth - 1], "Path": folder, "Size": 0, "Sha256": ""}
            if recursive or len(names) == 1:
                entries[path] = {"Type": "blob", "Name": names[-1], "Path": path, "Size": len(file.data), "Sha256": file.sha256}
        self.say(200, {"Code": 200, "Success": True, "Data": {"Files": list(entries.values())[:LISTED_MAX]}})


class CdnHandler(Handler):
    def do_GET(self):
        hub, target = self.server.hub, urllib.parse.urlsplit(self.path)
        if self.headers.get("Authorization") or self.headers.get("Cookie"):
            hub.leaked.append(self.path)
        if int(urllib.parse.parse_qs(target.query)["link"][0]) < hub.oldest:
            return self.answer(403)
        wanted = target.path.strip("/")
        for revisions in hub.repos.values():
            for files in revisions.values():
                for file in files.values():
                    if file.sha256 == wanted:
                        return self.give(file.data, {"ETag": '"edge"', "X-Linked-ETag": f'"{wanted}"'})
        return self.answer(404)
