"""Models in a real Redis server: what tensorizer wrote, what sluice writes, TLS, users, a server that dies."""
import json
import os
import subprocess
import time
import urllib.parse

import servers
from checks_convert import compare, convert, digests
from harness import check, fixture, free_port, need_program, sha256_file, wait_for

ROOMS = ("storage/redis", "model/convert")
TO_REDIS = """
import sys, redis
from tensorizer import TensorDeserializer
path, port, prefix = sys.argv[1:]
client = redis.Redis(host="127.0.0.1", port=int(port))
TensorDeserializer(path, device="cpu", lazy_load=True).to_redis(client, prefix)
"""
CONF = """\
bind 127.0.0.1
port {port}
tls-port {tls}
tls-cert-file {dir}/server.pem
tls-key-file {dir}/server.key
tls-ca-cert-file {dir}/ca.pem
tls-auth-clients no
save ""
appendonly no
dir {dir}
{more}
"""


@fixture("redis")
class Redis:
    """redis-server, with TLS on a second port; `more` is further configuration."""

    def __init__(self, h, name="redis", more=""):
        self.h = h
        self.program = need_program("redis-server")
        self.dir = h.directory(name)
        self.name = name
        self.port, self.tls = free_port(), free_port()
        servers.Nginx.make_certificates(self)
        with open(os.path.join(self.dir, "redis.conf"), "w") as file:
            file.write(CONF.format(port=self.port, tls=self.tls, dir=self.dir, more=more))
        self.start()

    def start(self):
        self.process = self.h.serve(self.name, [self.program, os.path.join(self.dir, "redis.conf")], self.port)

    def uri(self, prefix, login="", tls=False):
        port = self.tls if tls else self.port
        return f"redis{'s' if tls else ''}://{login}127.0.0.1:{port}/{urllib.parse.quote(prefix)}"

    def call(self, *words, login=()):
        done = subprocess.run([need_program("redis-cli"), "-p", str(self.port), *login, *words], capture_output=True, text=True)
        return done.stdout.strip()


@fixture("redis_acl")
def secured(h):
    """Only users with a password: one reads below m:, one writes."""
    return Redis(h, "redis-acl", "user default off\n"
                 "user reader on >read%me ~m:* +get +getrange +strlen\n"
                 "user writer on >write:me ~* +@all\n")


def tensors(h, reference):
    directory = h.directory("redis-tensors")
    if not os.listdir(directory):
        reference.run("make-tensors", directory)
    return directory


@check("redis", "reference")
def redis_holds_what_tensorizer_wrote(h, redis, reference):
    """to_redis() of plain and encrypted files: sluice loads the same file again, over TLS too."""
    directory = tensors(h, reference)
    for name in ("plain", "key"):
        path = os.path.join(directory, name + ".tensors")
        key = ("key", os.path.join(directory, "key")) if name == "key" else ()
        expected = reference.read("tensors", path, *key)
        done = subprocess.run([reference.python, "-c", TO_REDIS, path, str(redis.port), "theirs:" + name], capture_output=True, text=True)
        if done.returncode and name == "key":
            continue  # tensorizer does not copy encrypted files without their key
        assert done.returncode == 0, done.stderr[-500:]
        to = h.fresh()
        h.load(redis.uri("theirs:" + name), to, "--connections", "8").expect(0)
        assert sha256_file(os.path.join(to, "theirs:" + name)) == sha256_file(path)
        if name == "plain":
            compare(digests(h, redis.uri("theirs:plain", tls=True), "--set", f"source.tls.caFile={redis.dir}/ca.pem"), expected, "over TLS")
    h.sluice("inspect", redis.uri("theirs:plain", tls=True)).expect(7, "caFile")


@check("redis", "reference")
def tensorizer_reads_from_redis_what_we_wrote(h, redis, reference):
    """convert into Redis: tensorizer reads it back from there; a second one needs --replace and leaves nothing of the first."""
    directory = tensors(h, reference)
    path = os.path.join(directory, "plain.tensors")
    convert(h, path, redis.uri("ours")).expect(0)
    compare(reference.read("tensors", redis.uri("ours")), reference.read("tensors", path), "tensorizer's reading")
    back = h.fresh() + ".tensors"
    convert(h, redis.uri("ours"), back).expect(0)
    assert sha256_file(back) == sha256_file(path)
    convert(h, path, redis.uri("ours")).expect(2, "--replace")
    convert(h, path, redis.uri("ours"), "--replace", "--set", "tensors.include=float32").expect(0)
    assert len(redis.call("keys", "ours:*").splitlines()) == 3, redis.call("keys", "ours:*")
    assert not redis.call("keys", "sluice-upload*")


@check("redis")
def redis_takes_any_name(h, redis):
    """Names with spaces, quotes, unicode and line ends, empty tensors, 64 MiB in pieces: written and read."""
    path = os.path.join(h.directory("redis-odd"), "odd.safetensors")
    names = ["a b", "q\"'\\", "*?[x]", "\u00e4\u6587", "line\nend", ":header:0", "empty"]
    header, at = {}, 0
    for name in names:
        count = 0 if name == "empty" else 12
        header[name] = {"dtype": "U8", "shape": [count], "data_offsets": [at, at + count]}
        at += count
    header["large"] = {"dtype": "U8", "shape": [64 << 20], "data_offsets": [at, at + (64 << 20)]}
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text + os.urandom(at) + os.urandom(1 << 20) * 64)
    convert(h, path, redis.uri("odd prefix/x")).expect(0)
    convert(h, path, redis.uri("slash") + "/").expect(0)  # a slash at the end names the same model
    assert [h.sluice("inspect", redis.uri("slash") + end).expect(0).out for end in ("", "/")], "neither way"
    compare(digests(h, redis.uri("odd prefix/x")), digests(h, path), "through Redis")
    h.sluice("verify", redis.uri("odd prefix/x")).expect(0)


@check("redis_acl")
def redis_passwords(h, redis):
    """Users and passwords: wrong ones end with 3 and advice, and none is ever printed."""
    path = os.path.join(h.directory("redis-odd"), "one.safetensors")
    text = json.dumps({"w": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}}).encode()
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text + b"abcd")
    convert(h, path, redis.uri("m", "writer:write%3Ame@")).expect(0)
    outcomes = [h.sluice("inspect", redis.uri("m")).expect(3, "REDIS_PASSWORD"),
                h.sluice("inspect", redis.uri("m", "reader:wrong@")).expect(3, "WRONGPASS"),
                h.sluice("inspect", redis.uri("m", "reader:read%25me@")).expect(0),
                h.sluice("inspect", redis.uri("m", "reader@"), env={"REDIS_PASSWORD": "read%me"}).expect(0),
                convert(h, path, redis.uri("m2", "reader:read%25me@")).expect(3, "NOPERM")]
    secret = os.path.join(h.directory("redis-odd"), "password")
    with open(secret, "w") as file:
        file.write("read%me\n")
    outcomes.append(h.sluice("inspect", redis.uri("m"), "--set", "source.redis.username=reader", "--set", f"source.redis.passwordFile={secret}").expect(0))
    for run in outcomes:
        assert "read%me" not in run.err + run.out and "read%25me" not in run.err + run.out, run.err


@check("redis")
def redis_dies_in_a_load(h, redis):
    """A server killed while it is read: exit 7, nothing published; a key that is gone: exit 4; another length: exit 5."""
    server = Redis(h, "redis-mortal")
    path = os.path.join(h.directory("redis-odd"), "two.safetensors")
    size = 256 << 20
    text = json.dumps({"a": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]},
                       "b": {"dtype": "U8", "shape": [size], "data_offsets": [size, 2 * size]}}).encode()
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for _ in range(2 * size >> 20):
            file.write(os.urandom(1 << 20))
    convert(h, path, server.uri("m")).expect(0)
    to = h.fresh()
    load = h.start("load", server.uri("m"), "--to", to, "--attempts", "2", "--unreachable-seconds", "5", "--bandwidth", "10MB/s")
    wait_for("the first bytes", lambda: os.path.isdir(os.path.join(to, ".sluice", "staging")) or load.poll() is not None)
    server.process.kill()
    assert load.wait(300) == 7, load.returncode
    assert not os.path.exists(os.path.join(to, ".sluice", "ready"))
    server.start()
    convert(h, path, server.uri("m")).expect(0)
    key = next(key for key in server.call("keys", "m:b:*").splitlines() if int(server.call("strlen", key)) == size)
    server.call("setrange", key, str(size), "x")
    h.load(server.uri("m"), h.fresh()).expect(5, "holds")
    server.call("del", key)
    h.load(server.uri("m"), h.fresh()).expect(4, "evicted")
    started = time.monotonic()
    upload = h.start("convert", path, server.uri("killed"))
    wait_for("the first value", lambda: server.call("keys", "sluice-upload*") or upload.poll() is not None)
    h.stop(upload)
    if upload.returncode:  # it may have been through before it was stopped
        assert not server.call("keys", "killed:*"), "half a model is visible"
    assert not server.call("keys", "sluice-upload*"), "temporary keys are left"
    h.stop(server.process)
    return f"{time.monotonic() - started:.1f} s"
