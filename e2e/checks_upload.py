"""What is written to real servers: versitygw, Ceph RGW, nginx; conditions, refusals, kills."""
import os
import re
import signal
import time

import models
from harness import Skip, check, fixture, free_port, http_get, need_program, sha256_file, wait_for

ROOMS = ("storage/upload", "storage/http", "storage/s3")
BUCKET, ENDED = "uploads", "uploads-ended"
BYTES = 192 << 20


@fixture("upload_model")
def model(h):
    """A safetensors file of 192 MiB: a dozen parts."""
    path = os.path.join(h.directory("upload"), "model.safetensors")
    models.write_big(path, BYTES)
    return path


@fixture("dav")
class Dav:
    """nginx that takes PUTs below /dav/, with a password below /private/, and none below /plain/."""

    CONF = """\
worker_processes 1; pid {dir}/nginx.pid; error_log {dir}/error.log; daemon off; {user}
events {{ worker_connections 64; }}
http {{
    client_body_temp_path {dir}/t1; proxy_temp_path {dir}/t2; fastcgi_temp_path {dir}/t3;
    uwsgi_temp_path {dir}/t4; scgi_temp_path {dir}/t5;
    access_log {dir}/access.log;
    server {{
        listen 127.0.0.1:{port};
        root {root};
        client_max_body_size 0;
        location /dav/ {{ dav_methods PUT; create_full_put_path on; }}
        location /shallow/ {{ dav_methods PUT; }}
        location /private/ {{ dav_methods PUT; create_full_put_path on;
                              auth_basic e2e; auth_basic_user_file {dir}/users; }}
        location /tiny/ {{ dav_methods PUT; client_max_body_size 1m; }}
        location /moved/ {{ return 307 http://127.0.0.1:{port}/dav$request_uri; }}
    }}
}}
"""

    def __init__(self, h):
        program = need_program("nginx", "/usr/sbin/nginx")
        self.dir, self.root, self.port = h.directory("dav"), h.directory("dav-root"), free_port()
        os.chmod(h.disk, 0o755)
        for name in ("dav", "shallow", "private", "tiny"):
            os.makedirs(os.path.join(self.root, name), exist_ok=True)
        self.url = f"http://127.0.0.1:{self.port}"
        with open(os.path.join(self.dir, "users"), "w") as file:
            file.write("writer:{PLAIN}sesame\n")
        conf = os.path.join(self.dir, "nginx.conf")
        with open(conf, "w") as file:
            file.write(self.CONF.format(dir=self.dir, root=self.root, port=self.port,
                                        user="user root;" if os.getuid() == 0 else ""))
        try:
            h.serve("dav", [program, "-p", self.dir, "-c", conf], self.port)
        except AssertionError as error:
            raise Skip(f"nginx without WebDAV: {error}") from None

    def path(self, name):
        return os.path.join(self.root, name)

    def names(self):
        return sorted(os.path.relpath(os.path.join(parent, name), self.root)
                      for parent, _, names in os.walk(self.root) for name in names)


def convert(h, source, to, *arguments, env=None, **options):
    return h.sluice("convert", source, to, "--progress", "none", *arguments, env=env, **options)


def digests(h, uri, env=None):
    tensors = h.sluice("inspect", "--json", "--digest", uri, env=env).expect(0).json()["tensors"]
    return {row["name"]: row["sha256"] for row in tensors}


def unfinished(store, bucket):
    """Multipart uploads that the store still holds."""
    status, body = store.request("GET", bucket, query="uploads=")
    assert status == 200, f"{status} {body[:300]}"
    return len(re.findall(b"<UploadId>", body))


def status_of(store, bucket, key):
    return store.request("GET", bucket, key, headers={"range": "bytes=0-0"})[0]


# ---- S3 -------------------------------------------------------------------------------------------

def written_to(h, store, model_path):
    env = store.env()
    store.make_bucket(BUCKET)
    expected = digests(h, model_path)
    start = time.monotonic()
    convert(h, model_path, f"s3://{BUCKET}/odd dir+%/a b.safetensors", env=env).expect(0)
    rate = BYTES / (time.monotonic() - start) / 1e6
    convert(h, model_path, f"s3://{BUCKET}/m.tensors", env=env).expect(0)
    for key in ("odd dir+%/a b.safetensors", "m.tensors"):
        assert digests(h, f"s3://{BUCKET}/{key}", env) == expected, key
    assert unfinished(store, BUCKET) == 0
    small = os.path.join(h.directory("upload"), "small.safetensors")
    models.write_big(small, 1 << 20)
    convert(h, small, f"s3://{BUCKET}/small.tensors", env=env).expect(0)
    assert digests(h, f"s3://{BUCKET}/small.tensors", env) == digests(h, small)
    for source in (model_path, small):
        convert(h, source, f"s3://{BUCKET}/m.tensors", env=env).expect(2, "exists")
    assert digests(h, f"s3://{BUCKET}/m.tensors", env) == expected, "a refusal changed what was there"
    convert(h, small, f"s3://{BUCKET}/m.tensors", "--replace", env=env).expect(0)
    convert(h, model_path, f"s3://{BUCKET}/m.tensors", "--replace", env=env).expect(0)
    assert digests(h, f"s3://{BUCKET}/m.tensors", env) == expected
    convert(h, model_path, "s3://no-such-bucket/m.tensors", env=env).expect(4)
    convert(h, model_path, f"s3://{BUCKET}/x.tensors", env=dict(env, AWS_SECRET_ACCESS_KEY="wrong")).expect(3)
    assert unfinished(store, BUCKET) == 0
    return f"{rate:.0f} MB/s"


@check("versitygw", "upload_model")
def upload_versitygw(h, store, model_path):
    """Parts and single PUTs to versitygw: read back, kept unless replaced, refused with the right code."""
    return written_to(h, store, model_path)


@check("versitygw_closing", "upload_model")
def upload_versitygw_closing(h, store, model_path):
    """The same where every answer closes the connection."""
    return written_to(h, store, model_path)


@check("rgw", "upload_model")
def upload_rgw(h, store, model_path):
    """The same to Ceph."""
    return written_to(h, store, model_path)


def ended_in_mid_upload(h, store, model_path, key, number):
    """sluice ended by a signal once the store has an unfinished upload."""
    process = h.start("convert", model_path, f"s3://{ENDED}/{key}", "--progress", "none", env=store.env())
    try:
        wait_for("an upload", lambda: process.poll() is not None or unfinished(store, ENDED) > 0)
        early = process.poll() is None
        h.stop(process, number)
    finally:
        h.stop(process, signal.SIGKILL)
    return early and process.returncode != 0


@check("versitygw", "upload_model")
def upload_ended(h, store, model_path):
    """SIGTERM in mid-upload aborts it; SIGKILL leaves parts that nobody sees; the next run is right."""
    store.make_bucket(ENDED)
    for number in (signal.SIGTERM, signal.SIGKILL):
        key = f"ended-{number}.tensors"
        for attempt in range(5):
            if ended_in_mid_upload(h, store, model_path, key, number):
                break
            store.request("DELETE", ENDED, key)
        else:
            raise AssertionError("every upload had ended before the signal")
        assert status_of(store, ENDED, key) == 404, "a part of an object is visible"
        left = unfinished(store, ENDED)
        assert left == (0 if number == signal.SIGTERM else 1), f"{left} unfinished uploads after signal {number}"
        convert(h, model_path, f"s3://{ENDED}/{key}", env=store.env()).expect(0)
        assert digests(h, f"s3://{ENDED}/{key}", store.env()) == digests(h, model_path)


# ---- HTTP -----------------------------------------------------------------------------------------

@check("dav", "upload_model")
def upload_http(h, dav, model_path):
    """PUT to nginx: one PUT a file, redirects, passwords, kept unless replaced, refused with advice."""
    expected, before = digests(h, model_path), sha256_file(model_path)
    start = time.monotonic()
    convert(h, model_path, f"{dav.url}/dav/new/a%20b.safetensors").expect(0)
    rate = BYTES / (time.monotonic() - start) / 1e6
    assert digests(h, dav.path("dav/new/a b.safetensors")) == expected
    convert(h, model_path, f"{dav.url}/dav/m.tensors").expect(0)
    assert digests(h, f"{dav.url}/dav/m.tensors") == expected
    convert(h, model_path, f"{dav.url}/dav/m.tensors").expect(2, "exists")
    convert(h, model_path, f"{dav.url}/dav/m.tensors", "--replace").expect(0)
    convert(h, model_path, f"{dav.url}/moved/m.safetensors").expect(0)
    assert digests(h, dav.path("dav/moved/m.safetensors")) == expected
    convert(h, model_path, f"{dav.url}/private/m.tensors").expect(3, "credentials")
    convert(h, model_path, f"http://writer:sesame@127.0.0.1:{dav.port}/private/m.tensors").expect(0)
    names = dav.names()
    convert(h, model_path, f"{dav.url}/plain.tensors").expect(2, "dav_methods PUT")
    convert(h, model_path, f"{dav.url}/shallow/none/m.tensors").expect(7, "create_full_put_path")
    convert(h, model_path, f"{dav.url}/tiny/m.tensors").expect(6, "client_max_body_size")
    assert dav.names() == names and sha256_file(model_path) == before
    return f"{rate:.0f} MB/s"


@check("dav", "upload_model")
def upload_http_killed(h, dav, model_path):
    """A process killed in mid-PUT leaves no file at nginx, not even for a moment."""
    for attempt in range(5):
        process = h.start("convert", model_path, f"{dav.url}/dav/killed.safetensors", "--progress", "none")
        wait_for("a body", lambda: process.poll() is not None or os.listdir(os.path.join(dav.dir, "t1")))
        early = process.poll() is None
        assert http_get(f"{dav.url}/dav/killed.safetensors")[0] == 404 or not early, "half a file is visible"
        h.stop(process, signal.SIGKILL)
        if early and process.returncode == -signal.SIGKILL:
            break
        os.unlink(dav.path("dav/killed.safetensors"))
    wait_for("the end of the body", lambda: not os.listdir(os.path.join(dav.dir, "t1")))
    assert not [name for name in dav.names() if "killed" in name]
