"""Caches that a site has already, by the files of manifests/: what sluice doctor says of them, what leaves the store, who gets what."""
import getpass
import glob
import hashlib
import os
import random
import shutil

from harness import ROOT, check, fixed, free_port, need_program, sha256_file, wait_for

ROOMS = ("storage/store", "storage/http", "charts")
BLOCK, BLOCKS = 1 << 20, 24
MODEL = random.Random(1).randbytes(BLOCK // 4) * (BLOCKS * 4 - 3)


def varnish(h, host, port):
    """Varnish with the file of manifests/, before a store."""
    program, listen = need_program("varnishd", "/usr/sbin/varnishd"), free_port()
    folder = h.directory(f"varnish-{listen}")
    os.chmod(h.memory, 0o755)
    os.chmod(folder, 0o755)
    with open(os.path.join(ROOT, "manifests", "caches.vcl"), encoding="utf-8") as file:
        text = file.read().replace("@HOST@", host).replace("@PORT@", str(port))
    path = os.path.join(folder, "caches.vcl")
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    h.serve(f"varnish-{listen}", [program, "-F", "-j", "none", "-n", folder, "-a", f"127.0.0.1:{listen}", "-f", path, "-s", "malloc,256M",
                                  "-p", "default_grace=0", "-p", "workspace_backend=128k"], listen)
    return f"http://127.0.0.1:{listen}"


def traffic_server(h, host, port):
    """Apache Traffic Server with the files of manifests/, before a store."""
    program, listen, user = need_program("traffic_server", "/usr/bin/traffic_server"), free_port(), getpass.getuser()
    place = h.directory(f"trafficserver-{listen}")
    if user == "root":  # it serves as nobody else
        user = "nobody"
        os.chmod(os.path.dirname(place), 0o755)
    ours = os.path.join(ROOT, "manifests", "trafficserver")
    shutil.copytree("/etc/trafficserver", os.path.join(place, "etc"))
    for name in os.listdir(ours):
        with open(os.path.join(ours, name), encoding="utf-8") as file:
            text = file.read().replace("@LISTEN@", f"http://{host}:{port}/").replace("@ORIGIN@", f"http://{host}:{port}/")
        if name == "records.config":
            text = text.replace("STRING 8080", f"STRING {listen}:ip-in=127.0.0.1") + f"CONFIG proxy.config.admin.user_id STRING {user}\n"
        with open(os.path.join(place, "etc", name), "w", encoding="utf-8") as file:
            file.write(text)
    with open(os.path.join(place, "etc", "storage.config"), "w", encoding="utf-8") as file:
        file.write(f"{place}/cache 256M\n")
    folders = {"prefix": place, "exec_prefix": "/usr", "bindir": "/usr/bin", "sbindir": "/usr/bin", "sysconfdir": f"{place}/etc",
               "datadir": "/usr/share/trafficserver", "includedir": "/usr/include", "libdir": "/usr/lib/trafficserver",
               "libexecdir": "/usr/lib/trafficserver/modules", "localstatedir": f"{place}/run", "runtimedir": f"{place}/run",
               "logdir": f"{place}/log", "cachedir": f"{place}/cache"}
    with open(os.path.join(place, "runroot.yaml"), "w", encoding="utf-8") as file:
        file.write("".join(f"{name}: {path}\n" for name, path in folders.items()))
    for name in ("cache", "log", "run"):
        os.mkdir(os.path.join(place, name))
    if os.getuid() == 0:
        for folder in (place, *(os.path.join(place, name) for name in ("cache", "log", "run"))):
            shutil.chown(folder, user)
    h.serve(f"trafficserver-{listen}", [program, f"--run-root={place}/runroot.yaml"], listen)
    return f"http://127.0.0.1:{listen}"


def squid(h, host, port):
    """Squid with the files of manifests/, before a store."""
    program, listen = need_program("squid", "/usr/sbin/squid"), free_port()
    folder, ours = h.directory(f"squid-{listen}"), os.path.join(ROOT, "manifests", "squid")
    if os.getuid() == 0:  # it serves as another
        os.chmod(os.path.dirname(folder), 0o755)
        shutil.chown(folder, "proxy")
    keys, path = shutil.copy(os.path.join(ours, "versions.tab"), folder), os.path.join(folder, "squid.conf")
    with open(os.path.join(ours, "squid.conf"), encoding="utf-8") as file:
        text = file.read()
    for old, new in (("@LISTEN@", f"127.0.0.1:{listen}"), ("@HOST@", host), ("@PORT@", str(port)), ("/etc/squid/versions.tab", keys),
                     ("100 GB", "256 MB")):
        assert old in text, old
        text = text.replace(old, new)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text + f"pid_filename none\ncoredump_dir {folder}\naccess_log none\ncache_log {folder}/cache.log\nshutdown_lifetime 1 seconds\n")
    h.serve(f"squid-{listen}", [program, "-N", "-f", path], listen)
    return f"http://127.0.0.1:{listen}"


KINDS = [varnish, traffic_server]


def through(cache):
    return ("--through", cache, "--set", f"source.through.blockBytes={BLOCK}", "--set", f"readers.fixed={fixed(4, '1MiB')}")


@check("versitygw")
def caches_of_other_kinds_are_right(h, store):
    """Doctor finds nothing wrong; a key without rights gets nothing of what they have."""
    store.make_bucket("other")
    store.put("other", "m/weights.bin", MODEL)
    path = "s3://other/m/weights.bin"
    wrong = {**store.env(), "AWS_SECRET_ACCESS_KEY": "another"}
    for make in KINDS:
        cache = make(h, "127.0.0.1", store.port)
        shown = h.sluice("doctor", path, *through(cache)[:4], env=store.env()).expect(0, "keeps ranges by version")
        assert "warn" not in shown.out and "FAIL" not in shown.out, shown.out
        more = (*through(cache), "--set", "source.through.unverified=warn")
        loaded = h.load(path, h.fresh(), *more, env=store.env()).expect(0, "from 1 cache").json()
        assert loaded["cached"] > len(MODEL) // 2, loaded
        h.load(path, h.fresh(), *more, env=wrong).expect(3)
    return f"{len(KINDS)} kinds"


@check("nginx")
def caches_of_other_kinds_ask_once(h, nginx):
    """The first load brings each block to the cache once, the second asks the store for its opening alone; a new version is another."""
    path = os.path.join(nginx.root, "other.bin")
    port = int(nginx.http.rsplit(":", 1)[1])
    for make in KINDS:
        cache = make(h, "127.0.0.1", port)
        for version, content in enumerate((MODEL, MODEL[:-1] + b"!")):
            with open(path, "wb") as file:
                file.write(content)
            os.utime(path, (0, version + 1))
            h.sluice("sign", path, "--range-bytes", str(BLOCK)).expect(0)
            for again in (False, True):
                before, to = nginx.sent_bytes("/other.bin"), h.fresh()
                done = h.load(f"{nginx.http}/other.bin", to, *through(cache), "--set", "verify.sidecar=require").expect(0).json()
                past = done["fetched"] - done["cached"]
                assert sha256_file(glob.glob(os.path.join(to, "*.bin"))[0]) == hashlib.sha256(content).hexdigest()
                sent = nginx.sent_bytes("/other.bin") - before
                most = past if again else len(MODEL) + past
                assert done["cached"] > len(MODEL) // 2 and sent <= most, f"{make.__name__}, {again}: the store sent {sent} bytes, {past} of them past the cache"
    return f"{len(KINDS)} kinds"


@check("nginx")
def squid_keeps_whole_objects(h, nginx):
    """Doctor says what it fetches. Nothing is wrong, also where an object was replaced; when it has all, the store is asked for openings alone."""
    path, uri = os.path.join(nginx.root, "squid.bin"), f"{nginx.http}/squid.bin"
    cache = squid(h, "127.0.0.1", int(nginx.http.rsplit(":", 1)[1]))
    for version, content in enumerate((MODEL, MODEL[:-1] + b"!")):
        with open(path, "wb") as file:
            file.write(content)
        os.utime(path, (0, version + 1))
        h.sluice("sign", path, "--range-bytes", str(BLOCK)).expect(0)

        def asks_for_openings():
            before, to = nginx.sent_bytes("/squid.bin"), h.fresh()
            done = h.load(uri, to, *through(cache), "--set", "verify.sidecar=require").expect(0).json()
            assert sha256_file(glob.glob(os.path.join(to, "*.bin"))[0]) == hashlib.sha256(content).hexdigest()
            return done["cached"] > len(MODEL) // 2 and nginx.sent_bytes("/squid.bin") - before <= done["fetched"] - done["cached"]
        wait_for("a load that asks the store for its opening alone", asks_for_openings, 60)
    h.sluice("doctor", uri, *through(cache)[:4]).expect(2, "fetches more than the block that was asked for")


@check("versitygw")
def squid_passes_on_what_is_signed(h, store):
    """Of S3 it keeps nothing, and so gives nothing to a key without rights; a load is right, and doctor says so."""
    store.make_bucket("squid")
    store.put("squid", "m/weights.bin", MODEL)
    path, cache = "s3://squid/m/weights.bin", squid(h, "127.0.0.1", store.port)
    h.sluice("doctor", path, *through(cache)[:4], env=store.env()).expect(2, "keeps nothing of what it gave")
    more = (*through(cache), "--set", "source.through.unverified=warn")
    to = h.fresh()
    h.load(path, to, *more, env=store.env()).expect(0, "from 1 cache")
    assert sha256_file(os.path.join(to, "weights.bin")) == hashlib.sha256(MODEL).hexdigest()
    h.load(path, h.fresh(), *more, env={**store.env(), "AWS_SECRET_ACCESS_KEY": "another"}).expect(3)
