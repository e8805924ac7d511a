"""The real servers: versitygw, Ceph RGW, nginx. Each function is a fixture of the harness.

Everything listens on loopback, on ports that were free a moment ago, with data below the harness's directories.
"""
import os
import secrets
import subprocess

from harness import CACHE, Skip, fixture, free_port, http_get, need_program, one_at_a_time, run_client, wait_for
from s3client import S3

VERSITYGW = "github.com/versity/versitygw/cmd/versitygw@v1.7.0"


@one_at_a_time("go-{}")
def go_program(name, module):
    """From PATH, a cache, or built by go: a minute or two, once."""
    own = os.path.join(CACHE, "bin", name)
    try:
        return need_program(name, own)
    except Skip:
        pass
    try:
        go = need_program("go", "/usr/local/go/bin/go")
    except Skip:
        raise Skip(f"no {name} and no go to build it") from None
    env = dict(os.environ, GOBIN=os.path.join(CACHE, "bin"), GOFLAGS="-buildvcs=false")
    done = run_client([go, "install", module], env=env, timeout=900)
    if done.returncode:
        raise Skip(f"go install {module}: {done.stderr.strip()[-200:]}")
    return own


def versitygw_program():
    return go_program("versitygw", VERSITYGW)


@fixture("versitygw")
def versitygw(h, keep_alive=True, name="versitygw"):
    """S3 over a directory; the store has .root, where plain files are objects too."""
    program, port = versitygw_program(), free_port()
    store = S3(port, "e2eaccess", secrets.token_hex(16))
    store.root = h.directory(name)
    env = dict(os.environ, ROOT_ACCESS_KEY=store.access, ROOT_SECRET_KEY=store.secret)
    command = [program, "--port", f"127.0.0.1:{port}", "--region", "us-east-1", "--quiet"]
    if keep_alive:
        command.append("--keep-alive")
    store.process = h.serve(name, command + ["posix", store.root], port, env=env, cwd=h.disk)
    store.kind = "versitygw"
    return store


@fixture("versitygw_closing")
def versitygw_closing(h):
    """The same as it comes: it closes the connection after every answer."""
    return versitygw(h, keep_alive=False, name="versitygw-closing")


# ---- Ceph -----------------------------------------------------------------------------------------

CEPH_CONF = """\
[global]
fsid = {fsid}
mon initial members = a
mon host = [v2:127.0.0.1:{mon2},v1:127.0.0.1:{mon1}]
public network = 127.0.0.0/8
cluster network = 127.0.0.0/8
auth cluster required = cephx
auth service required = cephx
auth client required = cephx
keyring = {dir}/keyring
osd pool default size = 1
osd pool default min size = 1
osd pool default pg num = 1
osd pool default pgp num = 1
osd pool default pg autoscale mode = off
osd crush chooseleaf type = 0
mon allow pool size one = true
mon max pg per osd = 1000
osd objectstore = memstore
memstore device bytes = 8589934592
run dir = {dir}/run
admin socket = {dir}/run/$name.$pid.asok
pid file = {dir}/run/$name.pid
log file = {dir}/$name.log
ms bind ipv6 = false
rgw dns name = 127.0.0.1
[mon.a]
mon data = {dir}/mon.a
[osd.0]
osd data = {dir}/osd.0
"""


class Ceph:
    """One monitor, one OSD that keeps its objects in memory, one gateway: 13 seconds."""

    def __init__(self, h):
        for program in ("ceph-mon", "ceph-osd", "radosgw", "radosgw-admin", "ceph", "monmaptool", "ceph-authtool"):
            need_program(program)
        self.h, self.dir = h, h.directory("ceph")
        for name in ("mon.a", "osd.0", "run"):
            os.makedirs(os.path.join(self.dir, name))
        with open("/proc/sys/kernel/random/uuid") as file:
            self.fsid = file.read().strip()
        self.mon1, self.mon2 = free_port(), free_port()
        self.conf = os.path.join(self.dir, "ceph.conf")
        with open(self.conf, "w") as file:
            file.write(CEPH_CONF.format(fsid=self.fsid, mon1=self.mon1, mon2=self.mon2, dir=self.dir))
        self.env = dict(os.environ, CEPH_CONF=self.conf)

    def call(self, *command):
        done = subprocess.run(command, env=self.env, cwd=self.dir, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, f"{' '.join(command)}: {done.stderr[-800:]}"
        return done.stdout

    def start(self, store):
        keyring, monmap = os.path.join(self.dir, "keyring"), os.path.join(self.dir, "monmap")
        self.call("ceph-authtool", "--create-keyring", keyring, "--gen-key", "-n", "mon.", "--cap", "mon", "allow *")
        self.call("ceph-authtool", keyring, "--gen-key", "-n", "client.admin", "--cap", "mon", "allow *",
                  "--cap", "osd", "allow *")
        self.call("monmaptool", "--create", "--addv", "a", f"[v2:127.0.0.1:{self.mon2},v1:127.0.0.1:{self.mon1}]",
                  "--fsid", self.fsid, monmap)
        self.call("ceph-mon", "--mkfs", "-i", "a", "--monmap", monmap, "--keyring", keyring)
        self.h.serve("ceph-mon", ["ceph-mon", "-f", "-i", "a"], self.mon2, env=self.env, cwd=self.dir)
        with open("/proc/sys/kernel/random/uuid") as file:
            uuid = file.read().strip()
        self.call("ceph", "osd", "new", uuid)
        key = self.call("ceph", "auth", "get-or-create", "osd.0", "mon", "allow profile osd", "osd", "allow *")
        with open(keyring, "a") as file:
            file.write(key)
        self.call("ceph-osd", "-i", "0", "--mkfs", "--osd-uuid", uuid)
        self.h.spawn("ceph-osd", ["ceph-osd", "-f", "-i", "0"], env=self.env, cwd=self.dir)
        wait_for("the OSD", lambda: '"num_up_osds":1' in self.call("ceph", "osd", "stat", "-f", "json")
                 .replace(" ", ""), 300)
        self.gateway(store, [])

    def gateway(self, store, options, name="radosgw"):
        command = ["radosgw-admin", *options, "user", "create", "--uid=e2e", "--display-name=e2e",
                   "--access-key=" + store.access, "--secret=" + store.secret]
        self.call(*command)
        store.process = self.h.serve(name, ["radosgw", "-f", "-n", "client.admin", *options, "--rgw-frontends",
                                            f"beast endpoint=127.0.0.1:{store.port}"], store.port, 300,
                                     env=self.env, cwd=self.dir)


@fixture("rgw", expensive=True)
def rgw(h):
    store = S3(free_port(), "E2EACCESS", secrets.token_hex(16))
    Ceph(h).start(store)
    store.kind = "rgw"
    return store


# ---- nginx ----------------------------------------------------------------------------------------

NGINX_CONF = """\
worker_processes 2;
pid {dir}/nginx.pid;
error_log {dir}/error.log;
daemon off;
{user}
events {{ worker_connections 1024; }}
http {{
    client_body_temp_path {dir}/t1; proxy_temp_path {dir}/t2; fastcgi_temp_path {dir}/t3;
    uwsgi_temp_path {dir}/t4; scgi_temp_path {dir}/t5;
    log_format e2e '$server_port $status $body_bytes_sent $http_authorization $uri';
    access_log {dir}/access.log e2e;
    sendfile on; sendfile_max_chunk 2m; tcp_nopush on; keepalive_requests 1000000;
    default_type application/octet-stream;
    server {{
        listen 127.0.0.1:{port};
        root {root};
        location /private/ {{ auth_basic e2e; auth_basic_user_file {dir}/users; alias {root}/; }}
        location /moved/ {{ rewrite ^/moved/(.*)$ http://127.0.0.1:{other}/$1 redirect; }}
        location /norange/ {{ max_ranges 0; alias {root}/; }}
        location /json/ {{ autoindex on; autoindex_format json; alias {root}/; }}
        # A limit begins after what it lets through in a second.
        location /paced/ {{ limit_rate 16m; alias {root}/; }}
        location /slow/ {{ limit_rate 8m; alias {root}/; }}
    }}
    server {{ listen 127.0.0.1:{other}; root {root}; }}
    server {{
        listen 127.0.0.1:{tls} ssl;
        root {root};
        ssl_certificate {dir}/server.pem; ssl_certificate_key {dir}/server.key;
    }}
}}
"""


class Nginx:
    """.http, .other and .https are origins; .root is served; .ca is the file to trust."""

    def __init__(self, h):
        program = need_program("nginx", "/usr/sbin/nginx")
        self.h, self.dir = h, h.directory("nginx")
        self.root = h.directory("www")
        os.chmod(h.disk, 0o755)  # its workers may run as another user
        self.make_certificates()
        with open(os.path.join(self.dir, "users"), "w") as file:
            file.write("reader:{PLAIN}sesame\n")
        ports = [free_port() for _ in range(3)]
        self.http, self.other = (f"http://127.0.0.1:{port}" for port in ports[:2])
        self.https = f"https://127.0.0.1:{ports[2]}"
        conf = os.path.join(self.dir, "nginx.conf")
        with open(conf, "w") as file:
            file.write(NGINX_CONF.format(dir=self.dir, root=self.root, port=ports[0], other=ports[1], tls=ports[2],
                                         user="user root;" if os.getuid() == 0 else ""))
        h.serve("nginx", [program, "-p", self.dir, "-c", conf], ports[2])

    def make_certificates(self):
        openssl = need_program("openssl")

        def call(*command):
            done = subprocess.run([openssl, *command], cwd=self.dir, capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
        call("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=sluice e2e CA",
             "-keyout", "ca.key", "-out", "ca.pem")
        call("req", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=127.0.0.1", "-keyout", "server.key",
             "-out", "server.csr")
        with open(os.path.join(self.dir, "san"), "w") as file:
            file.write("subjectAltName=IP:127.0.0.1,DNS:localhost,DNS:sluice-e2e.test\n")
        call("x509", "-req", "-in", "server.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2",
             "-extfile", "san", "-out", "server.pem")
        self.ca = os.path.join(self.dir, "ca.pem")

    def log_lines(self):
        """[port, status, body bytes, authorization, path] of every answer so far."""
        with open(os.path.join(self.dir, "access.log")) as file:
            return [line.rstrip("\n").split(" ", 4) for line in file]

    def connections(self):
        """How many there are to its first port; an answer that was cut off is logged before its connection goes."""
        port = f":{int(self.http.rsplit(':', 1)[1]):04X}"
        with open("/proc/net/tcp") as file:
            rows = [line.split()[1:4] for line in file]
        return sum(local.endswith(port) and state not in ("0A", "06") for local, _, state in rows)

    def sent_bytes(self, name):
        """Body bytes sent for one path by answers that have ended."""
        return sum(int(line[2]) for line in self.log_lines() if line[4] == name)


@fixture("nginx")
def nginx(h):
    return Nginx(h)


# ---- sluice itself --------------------------------------------------------------------------------

def share(h, directory, *arguments, program=None):
    """`sluice share` of a directory: (process, origin)."""
    port = free_port()
    process = h.serve(f"share-{port}", [program or h.program, "share", directory, "--listen", f"127.0.0.1:{port}", *arguments],
                      port, env=h.environment())
    return process, f"http://127.0.0.1:{port}"
