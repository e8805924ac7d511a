"""TLS that the kernel opens, on a kernel that does it: few machines of continuous integration have one."""
import os
import re

from harness import ROOT, Skip, check, sha256_file

BUILD = os.path.join(ROOT, "build-kernel-tls")
TEST = os.path.join(BUILD, "tests", "test_link_kernel")
PROGRAM = os.path.join(BUILD, "sluice")
BYTES = 96 << 20
LOAD = """
set -e
{nginx} -p {dir} -c {conf}
cd /tmp
{program} load {url} --to /dev/shm/model --progress none --log-level info --set source.tls.caFile={ca} \\
    --set source.tls.kernel={wish} --set readers.rangeBytes=1MiB --connections 4 --json
sha256sum /dev/shm/model/kernel.bin
"""
CONF = """worker_processes 1; error_log /tmp/error.log; pid /tmp/nginx.pid; user root;
events {{ }}
http {{ access_log off; client_body_temp_path /tmp/b; proxy_temp_path /tmp/p; fastcgi_temp_path /tmp/f; uwsgi_temp_path /tmp/u;
    scgi_temp_path /tmp/s;
    server {{ listen 127.0.0.1:8443 ssl; ssl_certificate {dir}/server.pem; ssl_certificate_key {dir}/server.key; root {root}; }} }}
"""


def need_build():
    if not os.path.exists(TEST) or not os.path.exists(PROGRAM):
        raise Skip("not built: scripts/build --dir build-kernel-tls -DSLUICE_KERNEL_TLS=ON --target sluice "
                   "--target test_link_kernel")


def script(nginx, h, wish):
    conf = os.path.join(nginx.dir, "kernel.conf")
    with open(conf, "w") as file:
        file.write(CONF.format(dir=nginx.dir, root=nginx.root))
    return LOAD.format(nginx="/usr/sbin/nginx", dir="/tmp", conf=conf, program=PROGRAM, ca=nginx.ca, wish=wish,
                       url="https://127.0.0.1:8443/kernel.bin")


@check("debian_kernel")
def a_kernel_opens_tls(h, kernel):
    """The tests of TLS by the kernel pass with Debian's: three ciphers of TLS 1.2 and 1.3, ranges, an answer that breaks off."""
    need_build()
    out = kernel.run(f"SLUICE_TEST_KERNEL_TLS=real CK_DEFAULT_TIMEOUT=200 {TEST}\n")
    done = re.search(r"100%: Checks: (\d+), Failures: 0, Errors: 0", out)
    assert done, out[-2000:]
    # The others take a kernel that does as it is told, or a build without this.
    assert int(done[1]) - out.count("skipped: ") == 9, out[-3000:]


@check("debian_kernel", "nginx")
def a_load_says_which_way_was_cheaper(h, kernel, nginx):
    """auto takes the kernel's TLS to measure it, says in one line which way is cheaper, and every byte is right."""
    need_build()
    path = os.path.join(nginx.root, "kernel.bin")
    with open(path, "wb") as file:
        file.write(os.urandom(BYTES))
    out = kernel.run(script(nginx, h, "auto"))
    assert sha256_file(path) in out, out[-2000:]
    assert "TLS is received" in out and "CPU s/GB there" in out, out[-2000:]
