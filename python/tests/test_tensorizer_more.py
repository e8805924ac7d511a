"""sluice.tensorizer beside tensorizer: keys, certificates, figures of memory, Redis, parts of files."""
import inspect
import io
import itertools
import os
import re
import shutil
import socket
import subprocess
import time
import unittest

import tensorizer
import torch
from case import Case, Server, needs_writing, tensors
from tensorizer._crypt import available

import sluice
import sluice.tensorizer as door

EACH = (tensorizer, door)
REDIS = shutil.which("redis-server")
needs_sodium = unittest.skipUnless(available, "tensorizer finds no libsodium")


class Keeper:
    """What to_redis() needs of a client."""

    def __init__(self):
        self.kept = {}

    def set(self, key, value):
        self.kept[key] = bytes(value)

    def exists(self, key):
        return key in self.kept


def redis_server(case):
    """The port of one that keeps nothing on a disk, until the test ends."""
    held = socket.socket()  # nobody else gets the port before the server has it
    case.addCleanup(held.close)
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("127.0.0.1", 0))
    port = held.getsockname()[1]
    process = subprocess.Popen([REDIS, "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir", case.folder],
                               stdout=subprocess.DEVNULL)
    case.addCleanup(process.wait)
    case.addCleanup(process.terminate)
    while True:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return port
        case.assertIsNone(process.poll(), "it ended")
        time.sleep(0.02)


class Beside(Case):
    def alike(self, call):
        """Both refuse, with the same type of error, or give the same."""
        ours, theirs = self.both([lambda: call(door), lambda: call(tensorizer)])
        self.assertEqual(ours, theirs, inspect.getsource(call))

    def write(self, module, name, made, **options):
        serializer = module.TensorSerializer(self.at(name), **options)
        serializer.write_state_dict(made)
        serializer.close()
        return self.at(name)

    def test_versions_of_files_have_their_names(self):
        for name in ("NON_OPAQUE", "OPAQUE", "ENCRYPTION", "META_TENSOR", "LONG_TENSOR"):
            name += "_TENSORIZER_VERSION"
            self.assertEqual(getattr(door.serialization, name), getattr(tensorizer.serialization, name))
        for name in ("TENSORIZER_MAGIC", "TENSORIZER_VERSION", "OPAQUE_DTYPE_SEP"):
            self.assertEqual(getattr(door.serialization, name), getattr(tensorizer.serialization, name))

    def test_who_wants_each_hash_checked_gets_it(self):
        """A right CRC-32 and a wrong SHA-256: verify_hash=True finds it, of the file or of one call; so does verify="all"."""
        made, path = {"a": torch.arange(900.0), "b": torch.ones(5)}, self.at("m.tensors")
        sluice.save(made, path)
        with sluice.open(path) as model:
            wrong = next(found.value for found in model.hashes(model.entries()[0]) if found.kind == "sha256")
        with open(path, "rb") as file:
            data = file.read()
        with open(path, "wb") as file:
            file.write(data.replace(wrong, bytes([wrong[0] ^ 1]) + wrong[1:]))
        for package in EACH:
            mismatch = package.serialization.HashMismatchError
            with self.assertRaises(mismatch):
                package.TensorDeserializer(path, device="cpu", verify_hash=True)
            calls = (lambda door, **how: list(door.read_tensors(**how)), lambda door, **how: list(door.read_numpy_arrays(**how)),
                     lambda door, **how: list(door.read_tensors(num_tensors=1, **how)))
            for lazy, call in itertools.product((True, False), calls):
                if not lazy and package is tensorizer:
                    continue  # which gives nothing after an eager load
                with package.TensorDeserializer(path, device="cpu", lazy_load=lazy) as door:
                    self.assertTrue(call(door) or package is tensorizer)
                with package.TensorDeserializer(path, device="cpu", lazy_load=lazy) as door, self.assertRaises(mismatch):
                    call(door, verify_hash=True)
        for verify, good in (("auto", True), ("require", True), ("off", True), ("all", False)):
            try:
                sluice.load(path, verify=verify)
                self.assertTrue(good, verify)
            except sluice.SluiceError as error:
                self.assertEqual((error.kind, good), ("INTEGRITY", False))
        with self.assertRaisesRegex(ValueError, "'all'"):
            sluice.open(path, verify="every")

    def test_hashes_are_told_and_compared_alike(self):
        def told(module):
            kinds, made = module.serialization.HashType, module.serialization.TensorHash
            crc, sha = made(kinds.CRC32, b"1234"), made(type=kinds.SHA256, hash=bytes(32))
            return [(one.type.name, int(one.type), one.hash) for one in sorted([sha, crc])], crc == made(kinds.CRC32, b"1234"), crc < sha

        self.alike(told)
        for call in (
            lambda module: module.EncryptionParams(bytes(32)) == module.EncryptionParams(bytearray(32)),
            lambda module: module.EncryptionParams(bytes(32)) == module.EncryptionParams(b"k" * 32),
            lambda module: module.DecryptionParams.from_string("x") == module.DecryptionParams.from_string("x"),
            lambda module: module.DecryptionParams.from_key(b"k" * 32) == module.DecryptionParams.from_key(bytes(32)),
            lambda module: hash(module.DecryptionParams.from_string("x")), lambda module: hash(module.EncryptionParams(bytes(32))),
        ):
            self.alike(call)
        self.assertNotIn("kkkk", repr(door.EncryptionParams(b"k" * 32)))

    def test_files_of_a_server_are_read_alike(self):
        with open(self.at("f"), "wb") as file:
            file.write(bytes(range(100)))
        server = Server(self.at("f"))
        self.addCleanup(server.close)
        for module in EACH:
            with module.stream_io.CURLStreamFile(server.url) as file:
                into = bytearray(5)
                self.assertEqual((file.read(size=3), file.readinto(into), bytes(into)), (b"\0\1\2", 5, bytes(range(3, 8))))
                file.seek(position=20)
                self.assertEqual((file.read(2), file.tell(), file.readable(), file.writable()), (b"\x14\x15", 22, True, False))
                file.seek(4)
                self.assertEqual(file.read(), bytes(range(4, 100)))
                file.seek(90)
                file.register_error_context("the key was guessed")
                if module is door:
                    file.raw._source.cancel()
                with self.assertRaisesRegex(OSError, "(^|\n)the key was guessed$"):
                    file.read(20)

    def test_all_of_a_file_comes_in_few_requests(self):
        tensors = {f"t{number:02}": torch.full((1 << 16,), float(number)) for number in range(40)}
        sluice.save(tensors, self.at("m.tensors"))
        server = Server(self.at("m.tensors"))
        self.addCleanup(server.close)
        with sluice.open(server.url, framework="torch", whole=True) as model:
            found = model.load()
            self.assertLess(model.requests, 5)
            model.forget()
            self.assertEqual(model["t07"][5], 7.0)
            self.assertGreater(model.bytes_fetched, os.path.getsize(self.at("m.tensors")))
        with door.TensorDeserializer(server.url, device="cpu") as file:
            self.assertEqual(file.total_bytes_read, os.path.getsize(self.at("m.tensors")))
            self.assertEqual([file[name].tolist() for name in tensors], [found[name].tolist() for name in tensors])
        with door.TensorDeserializer(server.url, device="cpu", lazy_load=True) as file:
            self.assertEqual(file["t07"][5], 7.0)
            self.assertLess(file.total_bytes_read, os.path.getsize(self.at("m.tensors")) / 2)

    def test_parts_of_a_bucket_are_files(self):
        with open(self.at("f"), "wb") as file:
            file.write(b"0123456789")
        server = Server(self.at("f"))
        self.addCleanup(server.close)
        with door.stream_io.s3_download("s3://bucket/f", "key", "secret", server.url[:-2], begin=2, end=5) as file:
            self.assertEqual(file.read(), b"234")
        self.alike(lambda module: module.stream_io.s3_download("http://h/f", "key", "secret"))

    @needs_sodium
    def test_passphrases_make_the_same_keys(self):
        for limits in ("OpsLimit", "MemLimit"):
            ours, theirs = (getattr(module.EncryptionParams, limits) for module in EACH)
            self.assertEqual({one.name: int(one) for one in ours}, {one.name: int(one) for one in theirs})
        small = {"opslimit": 1, "memlimit": 8192, "salt": bytes(range(16))}
        for source, more in (("test", {}), (b"\xff\0raw", {}), ("größer", {"encoding": "latin-1"}), ("größer", {})):
            ours, theirs = (module.EncryptionParams.from_string(source, **small, **more) for module in EACH)
            self.assertEqual((ours.key, ours.salt), (theirs.key, theirs.salt))
        limits = (door.EncryptionParams.OpsLimit, tensorizer.EncryptionParams.OpsLimit)
        self.assertEqual(*(of.from_string("x", limit.MIN, 8192, small["salt"]).key
                           for of, limit in zip((module.EncryptionParams for module in (door, tensorizer)), limits)))
        for call in (
            lambda module: module.EncryptionParams.from_string(""), lambda module: module.EncryptionParams.from_string("x", salt=b"short"),
            lambda module: module.EncryptionParams.from_string("x", salt="0123456789abcdef"),
            lambda module: module.EncryptionParams.from_string("x", opslimit="1"),
            lambda module: module.EncryptionParams.from_string("x", opslimit=module.EncryptionParams.MemLimit.MIN),
            lambda module: module.EncryptionParams.from_string("x", memlimit=module.EncryptionParams.OpsLimit.MIN),
            lambda module: module.EncryptionParams.from_string("x", opslimit=0), lambda module: module.EncryptionParams.from_string("x", 1, 5),
            lambda module: module.EncryptionParams.random().salt, lambda module: module.EncryptionParams(memoryview(bytes(32))).key,
            lambda module: module.EncryptionParams(bytearray(31)), lambda module: module.DecryptionParams.from_string(5),
            lambda module: module.DecryptionParams.from_string(b"x").source, lambda module: module.DecryptionParams.from_string("x").key,
        ):
            self.alike(call)

    def test_more_work_than_a_file_may_ask_is_refused(self):
        for limits in ({"opslimit": 17}, {"memlimit": (2 << 30) + 1}):
            with self.assertRaises(ValueError):
                door.EncryptionParams.from_string("x", **limits)

    @needs_writing
    @needs_sodium
    def test_a_passphrase_encrypts_with_the_work_that_was_chosen(self):
        made = {name: tensor for name, tensor in tensors().items() if tensor.numel()}
        for module in EACH:
            params = module.EncryptionParams.from_string("secret", 1, 8192, b"0123456789abcdef")
            path = self.write(module, "m", made, encryption=params)
            for reader in EACH:
                for key in (reader.DecryptionParams.from_string("secret"), reader.DecryptionParams.from_key(params.key)):
                    with reader.TensorDeserializer(path, device="cpu", encryption=key) as found:
                        self.assertSame({name: found[name].detach() for name in made}, made)

    def test_certificates_are_said_in_one_way(self):
        file, folder = self.at("ca.pem"), self.at("certificates")
        os.mkdir(folder)
        for path in (file, os.path.join(folder, "a.pem")):
            with open(path, "w") as written:
                written.write("-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----\n")
        for call in (
            lambda module: module.stream_io.CAInfo(), lambda module: module.stream_io.CAInfo(cacert=file).curl_flags,
            lambda module: module.stream_io.CAInfo(capath=folder).curl_flags,
            lambda module: module.stream_io.CAInfo(allow_untrusted=True).curl_flags,
            lambda module: module.stream_io.CAInfo(cacert=file, allow_untrusted=True),
            lambda module: module.stream_io.CAInfo(cacert=file, capath=folder),
            lambda module: module.stream_io.CAInfo(cacert=folder), lambda module: module.stream_io.CAInfo(capath=file),
            lambda module: module.stream_io.CAInfo(file),
        ):
            self.alike(call)
        before = len(os.listdir("/proc/self/fd"))
        info = door.stream_io.CAInfo(capath=folder)
        with open(info.trusted()["ca_file"]) as found:
            self.assertIn("BEGIN CERTIFICATE", found.read())
        del info
        self.assertEqual(len(os.listdir("/proc/self/fd")), before)

    def test_figures_of_memory_have_the_same_parts(self):
        ours, theirs = (module.utils.MemoryUsage.now() for module in (door, tensorizer))
        self.assertEqual(ours._fields, theirs._fields)
        self.assertEqual(ours.cpu._fields, theirs.cpu._fields)
        self.assertEqual((ours.gpu is None, ours.torch is None), (theirs.gpu is None, theirs.torch is None))
        for name, values in (("CPUMemoryUsage", (5 << 30, 7 << 20)), ("GlobalGPUMemoryUsage", (9 << 30, 5 << 30, 4 << 30)),
                             ("TorchGPUMemoryUsage", (1 << 30, 2 << 30, 3 << 20, 4 << 20))):
            self.assertEqual(str(getattr(door.utils, name)(*values)), str(getattr(tensorizer.utils, name)(*values)))
        self.assertGreater(ours.cpu.maxrss, 1 << 20)

    def test_figures_of_memory_are_told_alike(self):
        def shape(text):
            return re.sub(r"[0-9.]+[a-zA-Z]*", "N", text)

        for told in (lambda module: str(module.utils.MemoryUsage.now()), lambda module: module.utils.get_mem_usage()):
            self.assertEqual(shape(told(door)), shape(told(tensorizer)))

    def test_figures_of_a_reader_and_a_writer_are_alike(self):
        made, found = {name: tensor for name, tensor in tensors().items() if tensor.numel()}, []
        for module in EACH:
            serializer = module.TensorSerializer(self.at("m"))
            serializer.write_state_dict(made)
            written = serializer.total_tensor_bytes
            serializer.close()
            with module.TensorDeserializer(self.at("m"), device="cpu") as opened:
                names, read = list(iter(opened)), opened.total_bytes_read
                found.append((written, names, opened.cache_status, opened.total_tensor_bytes))
            self.assertTrue(written <= read <= os.path.getsize(self.at("m")), read)
        self.assertEqual(found[1], found[0])

    def test_modules_are_verified_alike(self):
        module = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2))
        serializer = tensorizer.TensorSerializer(self.at("m"))
        serializer.write_module(module)
        serializer.close()

        def verified(each):
            with each.TensorDeserializer(self.at("m"), device="cpu") as opened:
                passed, results = opened.verify_module(module)
                return passed, sorted(results)

        self.alike(verified)
        with torch.no_grad():
            module[0].weight[0, 0] += 1
        self.alike(verified)

    def test_certificates_have_one_hash(self):
        def told(module):
            two = [module.stream_io.CAInfo(allow_untrusted=True) for _ in range(2)]
            return hash(two[0]) == hash(two[1])  # ours are equal, too

        self.alike(told)

    def test_files_of_a_server_say_the_same_of_themselves(self):
        with open(self.at("f"), "wb") as file:
            file.write(b"line\nand more")
        server = Server(self.at("f"))
        self.addCleanup(server.close)

        def told(module):
            file = module.stream_io.CURLStreamFile(server.url)
            with file as entered:
                said = [entered is file, file.readable(), file.writable(), file.seekable(), file.tell(), file.closed, file.read(4), file.tell()]
            return [*said, file.closed]

        self.alike(told)
        self.alike(lambda module: module.stream_io.CURLStreamFile(server.url).readline() if module is tensorizer else self.refuse())
        with door.stream_io.CURLStreamFile(server.url) as file, tensorizer.stream_io.CURLStreamFile(server.url) as other:
            self.assertEqual((file.readline(), file.readline()), (b"line\n", b"and more"))
            self.assertEqual(other.fileno(), -1, "which is not a descriptor")
            with self.assertRaises(OSError):
                file.fileno()

    @staticmethod
    def refuse():
        raise io.UnsupportedOperation("readline")

    @unittest.skipUnless(REDIS, "no redis-server")
    def test_keys_of_redis_are_a_file(self):
        import redis

        path, port = self.write(tensorizer, "m", {"wide": torch.arange(500.0), "more": torch.arange(40)}), redis_server(self)
        with tensorizer.TensorDeserializer(path, device="cpu", lazy_load=True) as found, redis.Redis(port=port) as client:
            found.to_redis(client, "p")

        def told(module):
            file = module.stream_io.RedisStreamFile(f"redis://127.0.0.1:{port}/p")
            with file as entered:
                said = [entered is file, file.readable(), file.writable(), file.seekable(), file.tell()]
                into = bytearray(100)
                said += [file.readinto(into), bytes(into), file.tell(), file.read(8)]
                file.seek(16)
                said += [file.tell(), file.read(50)]
            return [*said, file.closed]

        self.alike(told)
        with open(path, "rb") as file, door.stream_io.RedisStreamFile(f"redis://127.0.0.1:{port}/p") as ours:
            self.assertEqual(ours.read(100), file.read(100))
        other = tensorizer.stream_io.RedisStreamFile(f"redis://127.0.0.1:{port}/p")
        self.assertEqual(other.fileno(), -1)
        with self.assertRaises(io.UnsupportedOperation):
            other.readline()
        other.close()
        self.assertTrue(other.closed)

    def test_files_open_alike(self):
        path = self.at("new/folder/file")
        for module in EACH:
            with module.stream_io.open_stream(path, "wb") as file:
                file.write(b"0123456789")
            with module.stream_io.open_stream(path, begin=3, buffer_size=4096) as file:
                self.assertEqual(file.read(4), b"3456")
            with module.stream_io.open_stream(os.fsencode(path) if module is door else path) as file:
                self.assertEqual(file.read(), b"0123456789")
        for call in (
            lambda module: module.stream_io.open_stream(path, "r"), lambda module: module.stream_io.open_stream("http://h/x", "wb"),
            lambda module: module.stream_io.open_stream("s3://b/k", "r+b"), lambda module: module.stream_io.open_stream("redis://h/x", "wb"),
            lambda module: module.stream_io.open_stream(self.at("none")),
            lambda module: module.stream_io.CURLStreamFile("http://127.0.0.1:1/x", begin=-1),
            lambda module: module.stream_io.CURLStreamFile("http://127.0.0.1:1/x", begin=5, end=5),
            lambda module: module.stream_io.CURLStreamFile("http://127.0.0.1:1/x", end=0),
            lambda module: module.stream_io.CURLStreamFile("http://127.0.0.1:1/x", certificate_handling="x"),
        ):
            self.alike(call)

    def test_redis_gets_the_same_keys(self):
        made = {**tensors(), "meta": torch.empty(3, device="meta"), "n": [torch.ones(2), {"ü": torch.zeros(1)}]}
        path, kept = self.write(tensorizer, "m", made), []
        for module in EACH:
            client = Keeper()
            with module.TensorDeserializer(path, device="cpu", lazy_load=True) as found:
                found.to_redis(client, "p")
                kept.append(dict(client.kept))
                client.kept[next(key for key in client.kept if key.startswith("p:wide:"))] = b"kept"
                found.to_redis(client, "p")
                self.assertEqual(sum(value == b"kept" for value in client.kept.values()), 1)
                found.to_redis(client, "p", force=True)
                self.assertEqual(client.kept, kept[-1])
        self.assertEqual(kept[1], kept[0])

    def test_a_wrong_byte_is_a_mismatch(self):
        path = self.write(tensorizer, "m", {"wide": torch.arange(4096.0)})
        with open(path, "r+b") as file:
            file.seek(-64, io.SEEK_END)
            file.write(b"\x55")
        for module in EACH:
            with self.assertRaises(module.serialization.HashMismatchError):
                module.TensorDeserializer(path, device="cpu", verify_hash=True)


class Keys(unittest.TestCase):
    def test_a_passphrase_with_a_salt_has_a_key(self):
        made = sluice.Key.from_string("secret", opslimit=1, memlimit=8192, salt=bytes(16))
        self.assertEqual(len(made.key), 32)
        self.assertEqual(made.key, sluice.Key.from_string("secret", opslimit=1, memlimit=8192, salt=bytes(16)).key)
        for wrong in ({"opslimit": 0}, {"memlimit": 8191}, {"salt": b"short"}):
            with self.assertRaises(ValueError):
                sluice.Key.from_string("secret", **wrong)
        with self.assertRaises(ValueError):
            sluice.Key.from_string("secret").key


if __name__ == "__main__":
    unittest.main()
