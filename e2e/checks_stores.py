"""Real bytes from real servers: odd keys, a real model, a large object, many small ones."""
import hashlib
import json
import os
import subprocess
import urllib.parse

from harness import ROOT, check, http_get, sha256_file

ROOMS = ("storage/store", "storage/http", "storage/s3", "storage/stores", "model/plan", "load/reader")
BUCKET = "models"


def reference(python, *files):
    """The safetensors package's reading of files."""
    done = subprocess.run([python, os.path.join(ROOT, "e2e", "tensors.py"), *files], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-500:]
    return json.loads(done.stdout)


def inspected(h, uri, *arguments, env=None):
    """The same from `sluice inspect`."""
    run = h.sluice("inspect", "--json", "--digest", uri, *arguments, env=env).expect(0)
    return {row["name"]: [row["dtype"], row["shape"], row["sha256"]] for row in run.json()["tensors"]}


def rate(result):
    return f"{result['bytes'] / max(result['seconds'], 1e-9) / 1e9:.2f} GB/s"


# ---- odd keys -------------------------------------------------------------------------------------

def odd_keys_from(h, store, odd):
    store.make_bucket(BUCKET)
    odd.put(store, BUCKET, "odd keys+%/")
    to = h.fresh()
    h.load(f"s3://{BUCKET}/odd keys+%/", to, env=store.env()).expect(0)
    odd.compare(to)
    for name in odd.names[:6]:
        one = h.fresh()
        h.load(f"s3://{BUCKET}/odd keys+%/{name}", one, env=store.env()).expect(0)
        assert sha256_file(os.path.join(one, os.path.basename(name))) == odd.sha256[name], name


@check("versitygw", "odd")
def odd_keys_versitygw(h, store, odd):
    """A prefix and single objects with spaces, +, % and unicode in their keys."""
    odd_keys_from(h, store, odd)


@check("rgw", "odd")
def odd_keys_rgw(h, store, odd):
    """The same from Ceph."""
    odd_keys_from(h, store, odd)


def odd_urls(h, nginx, origin, odd, *arguments):
    for name in odd.names:
        target = os.path.join(nginx.root, "odd", name)
        os.makedirs(os.path.dirname(target), exist_ok=True)
        if not os.path.exists(target):
            os.link(os.path.join(odd.directory, name), target)
        to = h.fresh()
        h.load(f"{origin}/odd/{urllib.parse.quote(name)}", to, *arguments).expect(0)
        assert sha256_file(os.path.join(to, os.path.basename(name))) == odd.sha256[name], name


@check("nginx", "odd")
def odd_keys_http(h, nginx, odd):
    """Percent-encoded URLs; the published names are decoded."""
    odd_urls(h, nginx, nginx.http, odd)


@check("nginx", "odd")
def odd_keys_https(h, nginx, odd):
    """The same over TLS with an own CA."""
    odd_urls(h, nginx, nginx.https, odd, "--set", f"source.tls.caFile={nginx.ca}")


# ---- beyond 4 GiB --------------------------------------------------------------------------------

@check("nginx")
def places_beyond_four_gib_are_found(h, nginx):
    """Ranges, slices, lengths and one dimension that 32 bits do not hold: a file with holes, and a few bytes behind them."""
    size, mark = (4 << 30) + 64, b"behind the fourth gibibyte"
    header = {"wide": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]},
              "last": {"dtype": "U8", "shape": [len(mark)], "data_offsets": [size, size + len(mark)]}}
    text = json.dumps(header).encode()
    path = os.path.join(nginx.root, "beyond.safetensors")
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.seek(8 + len(text) + size - 64)
        file.write(mark[::-1] + bytes(64 - len(mark)) + mark)
    for uri in (path, nginx.http + "/beyond.safetensors"):
        run = h.sluice("inspect", "--json", "--slice", "last[:]", "--slice", f"wide[{size - 64}:{size - 64 + len(mark)}]", uri).expect(0).json()
        assert run["tensors"][0]["shape"] == [size] and run["object_bytes"] == os.path.getsize(path), run
        assert [row["sha256"] for row in run["slices"]] == [hashlib.sha256(data).hexdigest() for data in (mark, mark[::-1])], run
        assert run["read_bytes"] < 1 << 20, run["read_bytes"]
        to = h.fresh()
        h.load(uri, to, "--set", "tensors.include=last", "--set", "sink.tmpfs.layout=safetensors").expect(0)
        with open(os.path.join(to, "model.safetensors"), "rb") as file:
            assert file.read().endswith(mark)
    os.unlink(path)


# ---- a real model ---------------------------------------------------------------------------------

def minilm_from_s3(h, store, minilm, python):
    store.make_bucket(BUCKET)
    minilm.put(store, BUCKET, "minilm/")
    to = h.fresh()
    result = h.load(f"s3://{BUCKET}/minilm/", to, env=store.env()).expect(0).json()
    minilm.compare(to)
    published = reference(python, os.path.join(to, "model.safetensors"))
    assert len(published) == 104
    assert published == reference(python, os.path.join(minilm.directory, "model.safetensors"))
    remote = inspected(h, f"s3://{BUCKET}/minilm/model.safetensors", env=store.env())
    assert remote == published, "inspect --digest differs from the safetensors package"
    h.sluice("verify", to).expect(0)
    return f"104 tensors, {rate(result)}"


@check("versitygw", "minilm", "python", smoke=True)
def minilm_versitygw(h, store, minilm, python):
    """all-MiniLM-L6-v2 as a prefix: files by SHA-256, tensors by the reference package."""
    return minilm_from_s3(h, store, minilm, python)


@check("versitygw_closing", "minilm", "python")
def minilm_versitygw_closing(h, store, minilm, python):
    """The same from a server that closes the connection after every answer."""
    return minilm_from_s3(h, store, minilm, python)


@check("rgw", "minilm", "python")
def minilm_rgw(h, store, minilm, python):
    """The same from Ceph."""
    return minilm_from_s3(h, store, minilm, python)


def minilm_from_http(h, nginx, origin, minilm, python, *arguments):
    target = os.path.join(nginx.root, "minilm")
    if not os.path.exists(target):
        os.symlink(minilm.directory, target)
    to = h.fresh()
    result = h.load(f"{origin}/minilm/model.safetensors", to, *arguments).expect(0).json()
    file = os.path.join(to, "model.safetensors")
    assert sha256_file(file) == minilm.sha256["model.safetensors"]
    published = reference(python, file)
    assert published == inspected(h, f"{origin}/minilm/model.safetensors", *arguments)
    return f"{len(published)} tensors, {rate(result)}"


@check("nginx", "minilm", "python", smoke=True)
def minilm_http(h, nginx, minilm, python):
    """The weights over HTTP."""
    return minilm_from_http(h, nginx, nginx.http, minilm, python)


@check("nginx", "minilm", "python")
def minilm_https(h, nginx, minilm, python):
    """The weights over HTTPS with an own CA."""
    return minilm_from_http(h, nginx, nginx.https, minilm, python, "--set", f"source.tls.caFile={nginx.ca}")


@check("versitygw", "minilm", "python")
def selected_tensors(h, store, minilm, python):
    """tensors.include with layout safetensors: fewer bytes come, the reference package reads them."""
    store.make_bucket(BUCKET)
    minilm.put(store, BUCKET, "minilm/")
    to = h.fresh()
    result = h.load(f"s3://{BUCKET}/minilm/", to, "--set", "tensors.include=encoder.layer.1.*", "--set",
                    "sink.tmpfs.layout=safetensors", env=store.env()).expect(0).json()
    everything = reference(python, os.path.join(minilm.directory, "model.safetensors"))
    expected = {name: row for name, row in everything.items() if name.startswith("encoder.layer.1.")}
    found = reference(python, os.path.join(to, "model.safetensors"))
    assert found == expected and found, f"{len(found)} tensors, expected {len(expected)}"
    assert result["fetched"] < 20e6, f"{result['fetched']} bytes fetched for 7 MB of tensors"
    return f"{len(found)} of {len(everything)} tensors, {result['fetched'] / 1e6:.1f} MB fetched"


# ---- size and number ------------------------------------------------------------------------------

def big_from_s3(h, store, big):
    store.make_bucket(BUCKET)
    store.put_file(BUCKET, "big/model.safetensors", big.path, big.sha256)
    to = h.fresh()
    result = h.load(f"s3://{BUCKET}/big/model.safetensors", to, env=store.env()).expect(0).json()
    big.compare(os.path.join(to, "model.safetensors"))
    h.remove(to)
    return rate(result)


@check("versitygw", "big")
def big_versitygw(h, store, big):
    """2 GiB from versitygw."""
    return big_from_s3(h, store, big)


@check("rgw", "big")
def big_rgw(h, store, big):
    """2 GiB from Ceph."""
    return big_from_s3(h, store, big)


def big_url(nginx, big):
    target = os.path.join(nginx.root, "big.safetensors")
    if not os.path.exists(target):
        os.link(big.path, target)
    return nginx.http + "/big.safetensors"


@check("nginx", "big")
def big_http(h, nginx, big):
    """2 GiB from nginx."""
    to = h.fresh()
    result = h.load(big_url(nginx, big), to).expect(0).json()
    big.compare(os.path.join(to, "big.safetensors"))
    h.remove(to)
    return rate(result)


def small_from(h, store, small):
    store.make_bucket(BUCKET)
    small.put(store, BUCKET, "small/")
    to = h.fresh()
    run = h.load(f"s3://{BUCKET}/small/", to, env=store.env()).expect(0)
    small.compare(to)
    h.remove(to)
    return f"{len(small.names) / run.json()['seconds']:.0f} objects/s"


@check("versitygw", "small")
def small_objects_versitygw(h, store, small):
    """2,000 objects of 64 KiB, two pages of a listing."""
    return small_from(h, store, small)


@check("rgw", "small")
def small_objects_rgw(h, store, small):
    """The same from Ceph."""
    return small_from(h, store, small)


@check("versitygw", "minilm")
def presigned_link(h, store, minilm):
    """A presigned URL is an ordinary https source; its signature is not shown."""
    store.make_bucket(BUCKET)
    minilm.put(store, BUCKET, "minilm/")
    link = store.presign(BUCKET, "minilm/tokenizer.json")
    assert http_get(link)[0] == 200
    to = h.fresh()
    run = h.load(link, to).expect(0)
    assert sha256_file(os.path.join(to, "tokenizer.json")) == minilm.sha256["tokenizer.json"]
    signature = link.rsplit("=", 1)[1]
    with open(os.path.join(to, ".sluice", "manifest.json")) as file:
        assert signature not in file.read() + run.out + run.err, "the signature is in the manifest or the output"
