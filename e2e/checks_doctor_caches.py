"""Caches before a store, as sluice doctor finds them: nginx with the tested file, and with each directive taken out of it."""
import os
import re
import socket
import threading
import time

import cache_conf
from harness import check, free_port, need_program

ROOMS = ("storage/http", "storage/store", "tools/cli")
BUCKET, BLOCK = "caches", 256 << 10
BYTES = 5 * BLOCK + 5000
LINE = re.compile(r"^(ok|warn|FAIL) +cache +'(\S+)'(.*)$", re.M)

# A directive of the tested file, or several at once; what stands for it, and what doctor says then, "": nothing is wrong.
ROWS = [
    ("proxy_cache_key .*", "proxy_cache_key $slice_range;", "gives one version for another"),
    ("proxy_cache_key .*", "proxy_cache_key $uri$slice_range;", "gives one version for another"),
    ("proxy_cache_key .*", "proxy_cache_key $http_x_sluice_version;", "mixes ranges up"),
    ("slice @SLICE@;", "", "keeps nothing of what it gave"),
    ("slice @SLICE@;", f"slice {4 * BLOCK};", "fetches more than the block"),
    ("proxy_set_header Range .*", "", "keeps nothing of what it gave"),
    ("proxy_cache sluice;", "", "keeps nothing of what it gave"),
    ("proxy_cache_valid .*", "", "keeps nothing of what it gave"),
    ("proxy_set_header Host .*", "proxy_set_header Host another;", "refuses what the store gives"),
    ("proxy_pass .*", "proxy_pass http://127.0.0.1:1;", "does not reach the store"),
    ("proxy_cache_convert_head off;", "", "turns HEAD into GET"),
    ("proxy_(cache_bypass|no_cache) .*", "", "keeps answers to requests without X-Sluice-Version"),
    ("proxy_cache_bypass .*", "", ""),  # each of the two does alone
    ("proxy_no_cache .*", "", ""),
    ("proxy_cache_methods .*", "", ""),
    ("sendfile on;", "", ""),
    ("proxy_http_version .*", "", ""),
]


def serve_cache(h, origin, old="", new=""):
    """nginx with the tested file, in which `new` stands for what fits `old`: (its URL, process)."""
    program, port = need_program("nginx", "/usr/sbin/nginx"), free_port()
    place = h.directory(f"cache-{port}")
    text = cache_conf.read()
    if old:
        text, count = re.subn(old, new, text)
        assert count, f"'{old}' is not in the tested file"
    text = cache_conf.filled(text, place, f"127.0.0.1:{port}", BLOCK, origin)
    path = os.path.join(place, "nginx.conf")
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    return f"http://127.0.0.1:{port}", h.serve(f"nginx-{port}", [program, "-c", path, "-p", place], port)


class Far:
    """What is between a cache and a store that is not beside it: each answer comes later."""
    SECONDS = .05

    def __init__(self, port):
        self.to, self.listener = port, socket.create_server(("127.0.0.1", 0))
        self.host = "127.0.0.1:%d" % self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            near, _ = self.listener.accept()
            far = socket.create_connection(("127.0.0.1", self.to))
            for one, other, seconds in ((near, far, 0), (far, near, self.SECONDS)):
                threading.Thread(target=self.pump, args=(one, other, seconds), daemon=True).start()

    @staticmethod
    def pump(one, other, seconds):
        try:
            while data := one.recv(1 << 20):
                time.sleep(seconds)
                other.sendall(data)
            other.shutdown(socket.SHUT_WR)
        except OSError:
            pass


def doctored(h, store, uri, *caches):
    """What doctor says of each: (verdict, text), in its order."""
    through = [word for cache in caches for word in ("--through", cache)]
    shown = h.sluice("doctor", uri, *through, "--set", f"source.through.blockBytes={BLOCK}", env=store.env())
    found = {cache: [] for cache in caches}
    for verdict, cache, text in LINE.findall(shown.out):
        found[cache].append((verdict, text.strip()))
    return shown, found


@check("versitygw")
def doctor_names_what_a_cache_lacks(h, store):
    """The tested file lacks nothing; without one of its directives doctor says which, and nothing else."""
    store.make_bucket(BUCKET)
    store.put(BUCKET, "m/weights.bin", os.urandom(BYTES))
    uri, origin = f"s3://{BUCKET}/m/weights.bin", store.endpoint.split("//")[1]
    good, _ = serve_cache(h, origin)
    shown, found = doctored(h, store, uri, good)
    shown.expect(0, "keeps ranges by version")
    assert [verdict for verdict, _ in found[good]] == ["ok"], shown.out
    h.sluice("doctor", f"s3://{BUCKET}/m/", "--through", good, env=store.env()).expect(0, "keeps ranges by version")
    how = ("--through", good, "--set", f"source.through.blockBytes={BLOCK}", "--set", "source.through.unverified=warn")
    planned = h.sluice("plan", uri, *how, "--json", env=store.env()).expect(0).json()
    loaded = h.load(uri, h.fresh("caches"), *how, env=store.env()).expect(0, "from 1 cache").json()
    assert planned["caches"][0]["bytes"] == loaded["cached"] > 0, (planned["caches"], loaded["places"])
    assert {place["name"] for place in loaded["places"]} == {"origin", good}, loaded["places"]
    wrong = []
    for old, new, words in ROWS:
        cache, process = serve_cache(h, origin, old, new)
        shown, found = doctored(h, store, uri, cache)
        h.stop(process)
        said = [text for verdict, text in found[cache] if verdict != "ok"]
        if [words in text for text in said] != ([True] if words else []):
            wrong.append(f"'{old}' by '{new}': {found[cache]}\n{shown.err}")
    assert not wrong, "\n".join(wrong)
    far = Far(store.port).host  # who comes first is certain
    for old, verdict, words in (("", "ok", "fetches each once"), ("proxy_cache_lock on;", "FAIL", "fetches one block twice")):
        cache, _ = serve_cache(h, far, old)
        shown, found = doctored(h, store, uri, cache)
        assert [one for one, _ in found[cache]] == [verdict] and words in shown.out, shown.out
    return f"{len(ROWS) + 2} files of nginx"
