"""Models on S3 for engines that read only safetensors: encrypted, whole, one rank's slices, killed and resumed; files of ranks."""
import hashlib
import json
import os
import struct
import time

from harness import check, fixture, readers_pinned

ROOMS = ("model/transform", "model/plan", "model/convert", "core/sink", "load/reader", "storage/s3")
BUCKET, RANKS = "sealed", 4
ROWS, COLUMNS, LAYERS = 4096, 2048, 8  # F16: 16 MiB a matrix, 4 MiB a rank: whole pieces
ROW_BYTES = COLUMNS * 2


class Sealed:
    """A model of random bits, encrypted by key on versitygw, and what its tensors are."""

    def __init__(self, h, store):
        self.h, self.store = h, store
        folder = h.directory("sealed")
        self.plain, self.key = os.path.join(folder, "plain.safetensors"), os.path.join(folder, "key")
        self.sha256, self.slices, self.bytes, self.replicated = {}, {}, 0, 0
        self.write()
        store.make_bucket(BUCKET)
        h.sluice("keygen", self.key).expect(0)
        self.uri = f"s3://{BUCKET}/model.tensors"
        h.sluice("convert", self.plain, self.uri, "--encrypt", "--seal-key-file", self.key, env=store.env()).expect(0)

    def write(self):
        header, at, blobs = {"__metadata__": {"format": "pt"}}, 0, []
        for layer in range(LAYERS):
            for name, shape in ((f"layers.{layer}.q_proj.weight", [ROWS, COLUMNS]), (f"layers.{layer}.norm.weight", [COLUMNS])):
                data = os.urandom(2 * COLUMNS * (ROWS if len(shape) == 2 else 1))
                header[name] = {"dtype": "F16", "shape": shape, "data_offsets": [at, at + len(data)]}
                at += len(data)
                blobs.append(data)
                self.sha256[name] = hashlib.sha256(data).hexdigest()
                if len(shape) == 1:
                    self.replicated += len(data)
                    continue
                part = len(data) // RANKS
                self.slices[name] = [hashlib.sha256(data[i * part:(i + 1) * part]).hexdigest() for i in range(RANKS)]
        text = json.dumps(header).encode()
        self.bytes = at
        with open(self.plain, "wb") as file:
            file.write(struct.pack("<Q", len(text)) + text)
            for data in blobs:
                file.write(data)

    def load(self, to, *more):
        return self.h.load(self.uri, to, "--key-file", self.key, "--set", "sink.tmpfs.layout=safetensors", *more, env=self.store.env())


@fixture("sealed")
def sealed(h):
    return Sealed(h, h.fixture("versitygw"))


def published(path):
    """{name: (shape, sha256)} of a published model.safetensors."""
    with open(os.path.join(path, "model.safetensors"), "rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
        header.pop("__metadata__", None)
        found = {}
        for name, row in header.items():
            begin, end = row["data_offsets"]
            file.seek(8 + length + begin)
            found[name] = (row["shape"], hashlib.sha256(file.read(end - begin)).hexdigest())
    return found


@check("sealed", smoke=True)
def sealed_model_as_safetensors(h, sealed):
    """An encrypted .tensors file on S3 becomes safetensors; what lies in the store is not readable without the key."""
    to = h.fresh()
    result = sealed.load(to).expect(0).json()
    assert {name: digest for name, (_, digest) in published(to).items()} == sealed.sha256
    h.load(sealed.uri, h.fresh(), "--set", "sink.tmpfs.layout=safetensors", env=sealed.store.env()).expect(3, "E_KEY_REQUIRED")
    return f"{result['fetched']} bytes fetched for {sealed.bytes}"


@check("sealed")
def sealed_model_for_one_rank(h, sealed):
    """Each rank fetches its part of the split tensors, all of the others, and at most 2 % more."""
    share = (sealed.bytes - sealed.replicated) / RANKS + sealed.replicated
    most = 0
    for rank in range(RANKS):
        to, spec = h.fresh(), os.path.join(h.directory("sealed"), f"rank{rank}.yaml")
        with open(spec, "w") as file:
            file.write(f"apiVersion: sluice/v1alpha1\nkind: Model\nmetadata: {{name: rank{rank}}}\nsource: {{uri: \"{sealed.uri}\"}}\n"
                       f"decrypt: {{keyFile: \"{sealed.key}\"}}\nsink: {{tmpfs: {{path: \"{to}\", layout: safetensors}}}}\n{readers_pinned(range_bytes=8 << 20)}"
                       f"tensors:\n  shard: {{rank: {rank}, of: {RANKS}, rules: [{{match: \"*.q_proj.weight\", dim: 0}}]}}\n")
        result = h.sluice("load", spec, "--json", "--progress", "none", env=sealed.store.env()).expect(0).json()
        for name, (shape, digest) in published(to).items():
            cut = name in sealed.slices
            assert digest == (sealed.slices[name][rank] if cut else sealed.sha256[name]), name
            assert shape[0] == (ROWS // RANKS if cut else COLUMNS), (name, shape)
        most = max(most, result["fetched"])
        h.remove(to)
    assert most <= share * 1.02, f"{most} bytes fetched, a rank's share is {share:.0f}"
    return f"at most {most / share * 100 - 100:.2f} % more than a rank's share of {share / 1e6:.1f} MB"


@check("sealed")
def sealed_model_killed_and_resumed(h, sealed):
    """Killed at several moments, a decrypting load goes on with what its MACs vouched for."""
    resumed = 0
    for part in (0.2, 0.4, 0.6, 0.8):
        to = h.fresh()
        whole = sealed.load(to).expect(0).seconds
        h.remove(to)
        arguments = ["load", sealed.uri, "--to", to, "--key-file", sealed.key, "--set", "sink.tmpfs.layout=safetensors"]
        process = h.start(*arguments, env=sealed.store.env())
        time.sleep(whole * part)  # any moment will do
        process.kill()
        process.wait()
        result = sealed.load(to).expect(0).json()
        assert {name: digest for name, (_, digest) in published(to).items()} == sealed.sha256
        resumed = max(resumed, result["resumed"])
        h.remove(to)
    assert resumed > 0, "nothing was kept of any killed load"
    return f"at most {resumed} bytes kept"


@check("sealed")
def sealed_model_damaged_or_wrong_key(h, sealed):
    """A wrong key and a changed byte end with 5, say which, and publish nothing."""
    to, other = h.fresh(), os.path.join(h.directory("sealed"), "other-key")
    h.sluice("keygen", other).expect(0)
    h.load(sealed.uri, to, "--key-file", other, "--set", "sink.tmpfs.layout=safetensors", env=sealed.store.env()).expect(5, "E_DECRYPT", "key")
    path = os.path.join(sealed.store.root, BUCKET, "model.tensors")
    damaged = os.path.join(h.directory("sealed"), "damaged.tensors")
    with open(path, "rb") as file:
        data = bytearray(file.read())
    data[len(data) // 2] ^= 1
    with open(damaged, "wb") as file:
        file.write(data)
    run = h.load(damaged, to, "--key-file", sealed.key, "--set", "sink.tmpfs.layout=safetensors").expect(5, "E_DECRYPT")
    assert "damaged" in run.err + run.out, run.err
    assert not os.path.exists(os.path.join(to, "model.safetensors"))


@check("sealed")
def ranks_have_files_of_their_own(h, sealed):
    """convert --ranks writes a file for each rank into the store; each rank fetches its own alone, with its slices; what is not of as many ranks
    ends with 10."""
    to = f"s3://{BUCKET}/ranks/"
    h.sluice("convert", sealed.plain, to, "--ranks", str(RANKS), env=sealed.store.env()).expect(0)

    def load(rank, of, *more):
        where = h.fresh()
        return where, h.load(to, where, "--set", f"source.rank.index={rank}", "--set", f"source.rank.of={of}", *more, env=sealed.store.env())

    most = 0
    for rank in range(RANKS):
        where, result = load(rank, RANKS, "--set", "sink.tmpfs.layout=safetensors")
        most = max(most, result.expect(0).json()["fetched"])
        for name, (_, digest) in published(where).items():
            assert digest == (sealed.slices[name][rank] if name in sealed.slices else sealed.sha256[name]), name
        h.remove(where)
    share = (sealed.bytes - sealed.replicated) / RANKS + sealed.replicated
    assert most <= share * 1.02, f"{most} bytes fetched, a rank's share is {share:.0f}"
    where, result = load(1, RANKS)
    result.expect(0)
    assert [name for name in os.listdir(where) if name[0] != "."] == ["model-rank-1-part-0.safetensors"]
    load(1, RANKS * 2)[1].expect(10, "model-rank-4-part-0.safetensors")
    load(1, RANKS - 1)[1].expect(10, "model-rank-3-part-0.safetensors")
    return f"at most {most - share:.0f} bytes more than a rank's share of {share / 1e6:.1f} MB"
