"""Verified in flight: sidecars, wrong bytes on their way, and checksums that stores keep."""
import base64
import binascii
import hashlib
import json
import os
import re
import shutil
import socket
import subprocess
import threading

from harness import check, need_program, pinned, sha256_file

ROOMS = ("storage/store", "storage/s3", "model/transform", "load/reader", "model/convert")
OBJECT_BYTES = 256 << 20
FLIPS = 4
BUCKET = "verified"
RANGE_BYTES = 8 << 20


class FlippingServer:
    """One object and its sidecar by ranges; each of some bits is wrong in the first `times` answers that hold it."""

    def __init__(self, data, sidecar, flips, times):
        self.objects = {"/big.bin": data, "/big.bin.sluice.json": sidecar}
        self.flips, self.left, self.lock = flips, {at: times for at in flips}, threading.Lock()
        self.sent, self.asked = 0, []
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}/big.bin"
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                peer, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self.talk, args=(peer,), daemon=True).start()

    def close(self):
        self.listener.close()

    def talk(self, peer):
        try:
            with peer:
                while self.answer(peer):
                    pass
        except OSError:
            pass

    def tails(self):
        """The ends of answers that a connection which was free asked for again, so that the first one never took them."""
        return [(begin, end) for at, (begin, end) in enumerate(self.asked)
                if any(before < begin < behind == end for before, behind in self.asked[:at])]

    def again(self):
        """The bytes that were asked for twice for another reason."""
        return self.sent - len(self.objects["/big.bin"]) - sum(end - begin for begin, end in self.tails())

    def expect_found(self, result):
        """Each wrong bit that was taken was found."""
        taken = [at for at in self.flips if not any(begin <= at < end for begin, end in self.tails())]
        assert len(taken) <= result["refetched_ranges"] <= len(self.flips), result

    def body(self, path, begin, end):
        """The bytes, some of them wrong, and a note of what was asked for."""
        whole = memoryview(self.objects[path])[begin:end]
        with self.lock:
            if path == "/big.bin":
                self.asked.append((begin, end))
                self.sent += end - begin
                wrong = [at for at, left in self.left.items() if left and begin <= at < end]
                for at in wrong:
                    self.left[at] -= 1
                if wrong:
                    whole = bytearray(whole)
                    for at in wrong:
                        whole[at - begin] ^= 1
        return whole

    def answer(self, peer):
        head = b""
        while b"\r\n\r\n" not in head:
            more = peer.recv(8192)
            if not more:
                return False
            head += more
        path = head.split(b" ", 2)[1].decode()
        if path not in self.objects:
            peer.sendall(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
            return True
        total = len(self.objects[path])
        found = re.search(rb"[Rr]ange: bytes=(\d+)-(\d+)", head)
        begin, end = int(found[1]), min(int(found[2]) + 1, total)
        peer.sendall(f"HTTP/1.1 206 Partial Content\r\nContent-Range: bytes {begin}-{end - 1}/{total}\r\n"
                     f"Content-Length: {end - begin}\r\nETag: \"one\"\r\n\r\n".encode())
        peer.sendall(self.body(path, begin, end))
        return True


def signed_object(h):
    """256 MiB and its sidecar."""
    folder = h.directory("signed")
    path = os.path.join(folder, "big.bin")
    if not os.path.exists(path):
        with open(path, "wb") as file:
            for _ in range(16):
                file.write(os.urandom(OBJECT_BYTES // 16))
    h.sluice("sign", path).expect(0)
    with open(path, "rb") as data, open(path + ".sluice.json", "rb") as sidecar:
        return data.read(), sidecar.read()


@check()
def flipped_bits_are_found(h):
    """One bit wrong in each of four answers: every one is found, and only its range is fetched again."""
    data, sidecar = signed_object(h)
    flips = [OBJECT_BYTES // FLIPS * i + 77_777_77 for i in range(FLIPS)]

    server, to = FlippingServer(data, sidecar, flips, 1), h.fresh()
    result = h.load(server.url, to, *pinned(range_bytes=RANGE_BYTES), "--set", "verify.sidecar=require").expect(0, "checksum mismatch").json()
    assert sha256_file(os.path.join(to, "big.bin")) == hashlib.sha256(data).hexdigest()
    h.sluice("verify", to).expect(0)
    h.remove(to)
    server.expect_found(result)
    assert result["sidecars"] == 1, result
    again = server.again()
    assert again <= FLIPS * RANGE_BYTES + len(sidecar) + (1 << 20), f"{again} bytes were sent twice: {result}"
    return f"{again / 1e6:.1f} MB fetched twice for {FLIPS} bits"


@check()
def a_bit_that_stays_wrong_is_never_published(h):
    """A server that always flips one bit: 5, naming object and range, nothing is published."""
    data, sidecar = signed_object(h)
    server, to = FlippingServer(data, sidecar, [100 << 20], 1 << 30), h.fresh()
    h.load(server.url, to, "--set", "verify.sidecar=require").expect(5, "'big.bin'", "bytes 100663296 to 109051904",
                                                                     "expected")
    assert not os.path.exists(os.path.join(to, ".sluice", "ready")) and not os.path.exists(os.path.join(to, "big.bin"))
    h.remove(to)


@check()
def picked_tensors_are_checked_by_sidecars(h):
    """One wrong bit on its way into `layout: safetensors` and into a conversion: found by the sidecar, its range alone fetched
    again, what is written is right; one that stays wrong is never written."""
    folder = h.directory("picked")
    source, size = os.path.join(folder, "big.bin"), 48_000_000
    header = json.dumps({f"t{i}": {"dtype": "F32", "shape": [size // 24], "data_offsets": [i * size // 6, (i + 1) * size // 6]}
                         for i in range(6)}).encode()
    header += b" " * (-len(header) % 8)
    with open(source, "wb") as file:
        file.write(len(header).to_bytes(8, "little") + header + os.urandom(size))
    h.sluice("sign", source, "--range-bytes", "1MiB").expect(0)
    with open(source, "rb") as data, open(source + ".sluice.json", "rb") as sidecar:
        data, sidecar = data.read(), sidecar.read()
    digest = hashlib.sha256(data[8 + len(header):]).digest()

    def is_right(path):
        with open(path, "rb") as file:
            return hashlib.sha256(file.read()[-size:]).digest() == digest
    server, to = FlippingServer(data, sidecar, [size // 2], 1), h.fresh()
    picks = ("--set", "sink.tmpfs.layout=safetensors", "--set", "verify.sidecar=require")
    result = h.load(server.url, to, *picks).expect(0, "checksum mismatch").json()
    server.expect_found(result)
    assert (result["sidecars"], result["unhashed"]) == (1, 0), result
    assert is_right(os.path.join(to, "model.safetensors"))
    h.remove(to)
    new = os.path.join(folder, "new.safetensors")
    server = FlippingServer(data, sidecar, [size // 3], 1)
    h.sluice("convert", server.url, new, "--set", "verify.sidecar=require").expect(0, "checksum mismatch")
    assert is_right(new) and server.again() < 4 << 20, f"{server.again()} bytes were sent twice"
    server, newer = FlippingServer(data, sidecar, [size // 3], 1 << 30), os.path.join(folder, "newer.safetensors")
    h.sluice("convert", server.url, newer, "--set", "verify.sidecar=require").expect(5, "'big.bin'")
    assert not os.path.exists(newer)
    shutil.rmtree(folder)


def tensors_file(h):
    """A .tensors file of 8 tensors of 8 MB, and the same encrypted, with its key."""
    folder = h.directory("tensors")
    plain, sealed, key = (os.path.join(folder, name) for name in ("m.tensors", "sealed.tensors", "key"))
    header = json.dumps({f"t{i}": {"dtype": "F32", "shape": [2_000_000], "data_offsets": [i * 8_000_000, (i + 1) * 8_000_000]}
                         for i in range(8)}).encode()
    source = os.path.join(folder, "m.safetensors")
    with open(source, "wb") as file:
        file.write(len(header).to_bytes(8, "little") + header + os.urandom(64_000_000))
    h.sluice("convert", source, plain).expect(0)
    h.sluice("keygen", key).expect(0)
    h.sluice("encrypt", plain, sealed, "--key-file", key).expect(0)
    return plain, sealed, key


@check()
def a_flipped_tensor_is_fetched_again(h):
    """One wrong bit in a tensor, plain or encrypted, in each layout: its bytes are fetched again, what is written is right."""
    plain, sealed, key = tensors_file(h)
    notes = []
    for path, layout, flags in ((plain, "verbatim", []), (plain, "safetensors", []), (plain, "tensorizer", []),
                                (sealed, "safetensors", ["--key-file", key]), (sealed, "tensorizer", ["--key-file", key])):
        with open(path, "rb") as file:
            data = file.read()
        server, to = FlippingServer(data, b"", [40_000_000], 1), h.fresh()
        result = h.load(server.url, to, *pinned(range_bytes=RANGE_BYTES), "--set", f"sink.tmpfs.layout={layout}", *flags).expect(0).json()
        server.expect_found(result)
        more = server.again()
        notes.append(f"{more / 1e6:.0f}")
        if layout == "verbatim":
            assert sha256_file(os.path.join(to, "big.bin")) == hashlib.sha256(data).hexdigest()
        if layout == "tensorizer":  # headers that hold hashes are right as well
            h.sluice("verify", os.path.join(to, "model.tensors"), "--require").expect(0, "8 right, 0 wrong")
        digests = []
        names = [name for name in os.listdir(to) if name != ".sluice"]
        for uri in (plain, os.path.join(to, names[0])):
            index = h.sluice("inspect", "--json", "--digest", uri).expect(0).json()
            digests.append({row["name"]: row["sha256"] for row in index["tensors"]})
        assert digests[0] == digests[1], layout
        h.sluice("verify", to).expect(0)
        h.remove(to)
    return f"{', '.join(notes)} MB fetched beyond the object's length"


@check()
def minisign_agrees(h):
    """A sidecar signed by sluice, its text written by hand from docs/sidecars.md and checked by minisign itself."""
    minisign = need_program("minisign")
    folder = h.directory("minisigned")
    key, public = os.path.join(folder, "m.key"), os.path.join(folder, "m.pub")
    subprocess.run([minisign, "-G", "-f", "-W", "-s", key, "-p", public], check=True, capture_output=True)
    model = os.path.join(folder, "model")
    os.makedirs(model)
    with open(os.path.join(model, "m.bin"), "wb") as file:
        file.write(os.urandom(20_000_000))
    h.sluice("sign", model, "--minisign-key", key).expect(0)
    with open(os.path.join(model, "m.bin.sluice.json")) as file:
        sidecar = json.load(file)
    text = os.path.join(folder, "text")
    with open(text, "w") as file:
        file.write(f"sluice sidecar 1\nname m.bin\nbytes {sidecar['bytes']}\nrange_bytes {sidecar['range_bytes']}\n"
                   f"tree_sha256 {sidecar['tree_sha256']}\n")
    with open(text + ".minisig", "w") as file:
        file.write(sidecar["minisign"])
    subprocess.run([minisign, "-V", "-m", text, "-p", public], check=True, capture_output=True)
    with open(os.path.join(model, "m.bin"), "rb") as file:
        data = file.read()
    pieces = [data[at:at + RANGE_BYTES] for at in range(0, len(data), RANGE_BYTES)]
    assert sidecar["sha256"] == [hashlib.sha256(piece).hexdigest() for piece in pieces]
    to = h.fresh()
    key_setting = f"verify.minisign.publicKeyFile={public}"
    h.load(model + "/", to, "--set", key_setting).expect(0)
    with open(os.path.join(model, "m.bin"), "r+b") as file:
        file.seek(9_000_000)
        file.write(b"\0\1\2\3")
    h.load(model + "/", h.fresh(), "--set", key_setting).expect(5, "bytes 8388608 to 16777216")
    shutil.rmtree(folder)


def sign_in(h, store):
    """Signed below a prefix, loaded from the listing, and refused with one byte changed under the same ETag or not."""
    store.make_bucket(BUCKET)
    data = {f"shards/part-{i}.bin": os.urandom(20_000_000 + i) for i in range(3)}
    for name, body in data.items():
        store.put(BUCKET, name, body)
    uri = f"s3://{BUCKET}/shards/"
    h.sluice("sign", uri, env=store.env()).expect(0, "3 objects, 9 ranges")
    h.sluice("sign", "--check", uri, env=store.env()).expect(0)
    to = h.fresh()
    result = h.load(uri, to, env=store.env()).expect(0).json()
    assert (result["sidecars"], result["files"], result["unhashed"]) == (3, 3, 0), result
    for name, body in data.items():
        assert sha256_file(os.path.join(to, os.path.basename(name))) == hashlib.sha256(body).hexdigest()
    changed = bytearray(data["shards/part-1.bin"])
    changed[12_345_678] ^= 8
    store.put(BUCKET, "shards/part-1.bin", bytes(changed))
    run = h.load(uri, h.fresh(), env=store.env()).expect(0, "another version")
    assert run.json()["sidecars"] == 2
    h.load(uri, h.fresh(), "--set", "verify.sidecar=require", env=store.env()).expect(5, "another version")


@check("versitygw", smoke=True)
def sidecars_versitygw(h, store):
    """`sluice sign` writes beside objects of a bucket, and a load of the prefix finds and uses them."""
    sign_in(h, store)


@check("rgw")
def sidecars_rgw(h, store):
    """The same in Ceph."""
    sign_in(h, store)


def store_checksums(h, store):
    """What the store keeps of a whole object, where it keeps any; said, not asked for."""
    store.make_bucket(BUCKET)
    body = os.urandom(3_000_000)
    crc = base64.b64encode(binascii.crc32(body).to_bytes(4, "big")).decode()
    store.put(BUCKET, "summed.bin", body, {"x-amz-checksum-crc32": crc})
    run = h.load(f"s3://{BUCKET}/summed.bin", h.fresh(), "--set", "verify.hashes=require", env=store.env())
    if run.code == 5:
        run.expect(5, "without a hash")
        return "it tells none of whole objects"
    assert run.expect(0).json()["unhashed"] == 0
    return f"{run.json()['checks']} checksum compared"


@check("versitygw")
def store_checksums_versitygw(h, store):
    """The CRC of a whole object that the store keeps is compared with that of our ranges."""
    return store_checksums(h, store)


@check("rgw")
def store_checksums_rgw(h, store):
    """The same with Ceph."""
    return store_checksums(h, store)
