"""A cache before every kind of store: a real nginx by the file that the documents give, and the real stores where there are any."""
import base64
import hashlib
import os
import re

import cache_conf
import hf_hub
import ms_hub
import oci_registry
from checks_clouds import send
from checks_hf import safetensors
from checks_oci import docker_config
from harness import ROOT, check, free_port, need_program, sha256_file
from servers import share

ROOMS = ("storage/store", "storage/http", "storage/s3", "storage/gs", "storage/az", "storage/hf", "storage/ms", "storage/oci", "load/reader")
BLOCK = 256 << 10
# What openings read of an object is asked of the store.
HEAD = 1 << 20
DATA = safetensors(11, items=2_000_000)


class Place:
    """Where a row has the model: what a spec says of its source, and what lets in, or not (None: nobody is kept out)."""

    def __init__(self, uri, origin, env=None, wrong=None, more=""):
        self.uri, self.origin, self.env, self.wrong, self.more = uri, origin, env or {}, wrong, more
        self.stop = lambda: None


# ---- the rows -------------------------------------------------------------------------------------

STORES = {}


def store(kind, *needs):
    """A row: the function puts the model there."""
    def add(function):
        STORES[kind] = needs, function
        return function
    return add


@store("s3", "versitygw")
def in_s3(h, gateway):
    path = os.path.join(h.directory("through"), "model.safetensors")
    with open(path, "wb") as file:
        file.write(DATA)
    gateway.make_bucket("through")
    gateway.put_file("through", "m/model.safetensors", path, sha256_file(path))
    return Place("s3://through/m/", f"127.0.0.1:{gateway.port}", gateway.env(), {**gateway.env(), "AWS_SECRET_ACCESS_KEY": "wrong"})


@store("gs", "google")
def in_google(h, google):
    send("POST", f"http://127.0.0.1:{google.port}/upload/storage/v1/b/models/o?uploadType=media&name=through/model.safetensors", DATA,
         {"Content-Type": "application/octet-stream"})
    return Place("gs://models/through/", f"127.0.0.1:{google.port}", google.env())


@store("az", "azure")
def in_azure(h, azure):
    send("PUT", f"{azure.url}/models/through/model.safetensors?{azure.sas('models', rights='rw')}", DATA,
         {"x-ms-version": "2023-11-03", "x-ms-blob-type": "BlockBlob"})
    return Place("az://models/through/", f"127.0.0.1:{azure.port}", azure.env(), azure.env(base64.b64encode(b"wrong").decode()))


@store("http", "nginx")
def in_web(h, nginx):
    os.makedirs(os.path.join(nginx.root, "through"), exist_ok=True)
    with open(os.path.join(nginx.root, "through", "model.safetensors"), "wb") as file:
        file.write(DATA)
    host = nginx.http.removeprefix("http://")

    def logged_in(word):
        path = os.path.join(h.directory("through"), f"netrc-{word}")
        with open(path, "w") as file:
            file.write(f"machine 127.0.0.1 login reader password {word}\n")
        return {"NETRC": path}
    return Place(f"http://{host}/private/through/model.safetensors", host, logged_in("sesame"), logged_in("wrong"))


@store("hf")
def in_hub(h):
    hub = hf_hub.Hub()
    hub.commit("org/name", {"model.safetensors": (DATA, True)})
    hub.token = "hf_secret"
    env = {"HF_ENDPOINT": hub.url, "HOME": "/nonexistent", "HF_TOKEN": hub.token}
    place = Place("hf://org/name", f"127.0.0.1:{hub.cdn.server_port}", env, {**env, "HF_TOKEN": "hf_wrong"})
    place.stop = hub.stop
    return place


@store("ms")
def in_modelscope(h):
    hub = ms_hub.Hub()
    hub.put("org/name", {"model.safetensors": (DATA, True)})
    hub.token = "ms-secret"
    env = {"MODELSCOPE_ENDPOINT": hub.url, "HOME": "/nonexistent", "MODELSCOPE_API_TOKEN": hub.token}
    place = Place("ms://org/name", f"127.0.0.1:{hub.cdn.server_port}", env, {**env, "MODELSCOPE_API_TOKEN": "ms-wrong"})
    place.stop = hub.stop
    return place


@store("oci")
def in_registry(h):
    """Tokens for who logs in, and signed links of another host."""
    registry = oci_registry.Registry(login="user:secret")
    registry.artifact("org/m", "v1", {"model.safetensors": DATA})

    def logged_in(word):
        return {"HOME": "/nonexistent", "REGISTRY_AUTH_FILE":
                docker_config(h, registry.host, auth=base64.b64encode(f"user:{word}".encode()).decode())}
    place = Place(f"oci://{registry.host}/org/m:v1", f"127.0.0.1:{registry.cdn.server_port}", logged_in("secret"), logged_in("wrong"))
    place.stop = registry.stop
    return place


# ---- the cache ------------------------------------------------------------------------------------

class Cache:
    """nginx as docs/scale.md has it, with a log."""

    def __init__(self, h, name, origin):
        program, port = need_program("nginx", "/usr/sbin/nginx"), free_port()
        self.dir, self.url = h.directory(f"cache-{name}"), f"http://127.0.0.1:{port}"
        os.chmod(h.disk, 0o755)
        text = cache_conf.filled(cache_conf.read(), self.dir, f"127.0.0.1:{port}", BLOCK, origin)
        text = text.replace("access_log off;", f"log_format e2e '$upstream_cache_status $status'; access_log {self.dir}/access.log e2e;")
        conf = os.path.join(self.dir, "nginx.conf")
        with open(conf, "w") as file:
            file.write(text)
        self.process = h.serve(f"cache-{name}", [program, "-p", self.dir, "-c", conf], port)

    def lines(self):
        """(asked of it, of these what it had to ask the store for), all with the right bytes."""
        with open(os.path.join(self.dir, "access.log")) as file:
            lines = file.read().split("\n")[:-1]
        odd = [line for line in lines if not re.fullmatch("(HIT|MISS) 206", line)]
        assert not odd, f"the cache answered {odd[:5]}"
        return len(lines), sum(line.startswith("MISS") for line in lines)


def load(h, place, url, env):
    spec = os.path.join(h.directory("through"), f"{url[-5:]}.yaml")
    with open(spec, "w") as file:
        file.write("apiVersion: sluice/v1alpha1\nkind: Model\nmetadata: {name: m}\n"
                   f"source:\n  uri: {place.uri}\n  through: {{caches: [{url}], blockBytes: {BLOCK}}}\n"
                   f"verify: {{sha256: {{model.safetensors: {hashlib.sha256(DATA).hexdigest()}}}}}\n")
    to = h.fresh()
    return to, h.sluice("load", spec, "--to", to, "--json", "--progress", "none", "--fixed", "usual", env=env)


def through_a_share(h, place, published):
    """The machine that has loaded it gives it to the next one."""
    process, url = share(h, published)
    to, done = load(h, place, url, place.env)
    result = done.expect(0).json()
    assert sha256_file(os.path.join(to, "model.safetensors")) == hashlib.sha256(DATA).hexdigest()
    assert result["cached"] >= len(DATA) - HEAD and "warning" not in done.err, done.err
    h.stop(process)


def through_a_cache(h, place, kind):
    """Cold, warm, and with a wrong key: what the store is asked for each time."""
    cache = Cache(h, kind, place.origin)
    blocks = (len(DATA) + BLOCK - 1) // BLOCK
    asked, missed, direct = 0, 0, []
    for warm in (False, True):
        to, done = load(h, place, cache.url, place.env)
        result = done.expect(0).json()
        assert sha256_file(os.path.join(to, "model.safetensors")) == hashlib.sha256(DATA).hexdigest()
        assert result["cached"] >= len(DATA) - HEAD, f"{result['cached']} bytes of {len(DATA)} came from the cache: {done.err}"
        assert "warning" not in done.err, done.err
        now, misses = cache.lines()
        assert misses - missed == (0 if warm else now - asked), f"{misses - missed} of {now - asked} were fetched"
        assert now - asked <= blocks, (now - asked, blocks)
        direct.append(result["index_requests"] + result["requests"] - (now - asked))
        asked, missed, published = now, misses, to
    if place.wrong is not None:
        to, done = load(h, place, cache.url, place.wrong)
        assert done.code in (3, 4), (done.code, done.err)
        assert not os.path.exists(os.path.join(to, "model.safetensors")) and cache.lines() == (asked, missed), done.err
    h.stop(cache.process)
    through_a_share(h, place, published)
    key = "nobody is kept out" if place.wrong is None else "a wrong key gets nothing"
    assert direct[0] == direct[1] <= 4, direct
    return f"the store is asked {direct[0] + missed} times cold, {direct[1]} warm; {key}"


def add_row(kind):
    needs, put = STORES[kind]

    def row(h, *made):
        place = put(h, *made)
        try:
            return through_a_cache(h, place, kind)
        finally:
            place.stop()
    row.__name__ = f"through_a_cache_{kind}"
    row.__doc__ = f"{kind}: a cold cache fetches each block once, a warm one none; a wrong key gets no byte of it; `sluice share` does as well."
    check(*needs)(row)


for each in STORES:
    add_row(each)


@check()
def through_a_cache_has_a_row_for_every_store(h):
    """Of those that the reference names, but for Redis."""
    with open(os.path.join(ROOT, "docs", "reference", "sources.md")) as file:
        kinds = set(re.findall(r"^## `source\.([a-z0-9]+)`", file.read(), re.M))
    assert kinds - {"redis", "tls"} == set(STORES), kinds
