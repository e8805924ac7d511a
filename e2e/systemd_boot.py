#!/usr/bin/env python3
"""The packaged service under a real systemd: a Debian that debootstrap makes is booted in an emulated processor (qemu).

    e2e/systemd_boot.py [DIR]     DIR has sluice_*.deb, build-release/dist unless given

In it the package is installed, the service started, restarted, killed, reloaded, stopped, and the package removed. It takes
minutes, root and debootstrap, so it is not in CI. The last line counts: "N passed, N failed, N skipped".
"""
import glob
import os
import struct
import subprocess
import sys

from emulated import ENDED, Emulated
from harness import ROOT, Harness, Skip

MEMORY_MIB, SECONDS = 1024, 1500
MODEL_BYTES = 4 << 20
STEP = "PASSED: "
# The script is a unit of its own, whose output is the console.
UNIT = f"""[Unit]
After=multi-user.target
[Service]
Type=oneshot
ExecStart=/bin/bash -c '/bin/bash /task/task; echo "{ENDED}$?"; exec systemctl poweroff -f -f'
StandardOutput=tty
StandardError=tty
TTYPath=/dev/ttyS0
"""
SYSTEM = """$b mkdir -p /root/task /root/etc/systemd/system/default.target.wants
$b cp /task/* /root/task/
$b cp /task/task.service /root/etc/systemd/system/
$b ln -s ../task.service /root/etc/systemd/system/default.target.wants/task.service
exec $b switch_root /root /sbin/init"""
KERNEL = "systemd.mask=serial-getty@ttyS0.service systemd.show_status=0 systemd.log_target=journal audit=0"

CONFIG = """apiVersion: sluice/v1alpha1
kind: Node
directory: /run/sluice/models
budgetBytes: 128MiB
listen: 127.0.0.1:9464
control: {socket: /run/sluice/control.sock}
pool: {socket: /run/sluice/pool.sock}
"""
MODEL = """---
apiVersion: sluice/v1alpha1
kind: Model
metadata: {{name: {name}}}
source: {{uri: "http://127.0.0.1:8000/{name}.safetensors"}}
"""
# Every wait ends with what it waits for; the machine itself is ended after SECONDS.
SCRIPT = """set -eu
export HOME=/root LANG=C.UTF-8 SLUICE_POOL_SOCKET=/run/sluice/pool.sock
trap 'journalctl -u sluice.service -u store.service --no-pager -o cat | tail -n 40; systemctl status sluice.service --no-pager | head -n 20' ERR
passed() {{ echo "{step}$*"; }}
property() {{ systemctl show -P "$1" sluice.service; }}
until_is() {{ until [ "$(property "$1")" = "$2" ]; do sleep 1; done; }}
ask() {{ exec 3<>/dev/tcp/127.0.0.1/9464; printf 'GET %s HTTP/1.0\\r\\nHost: h\\r\\n\\r\\n' "$1" >&3; tr -d '\\r' <&3; }}
fetched() {{ ask /metrics | sed -n 's/^sluice_source_bytes_total[^ ]* //p' | awk '{{ all += $1 }} END {{ print all + 0 }}'; }}
until_ready() {{ until ask /readyz 2>/dev/null | grep -q '^HTTP/1.[01] 200'; do sleep 1; done; }}
files() {{ find /etc /run/sluice /usr /opt /srv /root /var/lib -xdev \\( -path /var/lib/dpkg -o -path /var/lib/systemd \\) -prune -o -print 2>/dev/null | sort; }}

files >/tmp/before
dpkg -i /task/sluice_*.deb
systemctl start sluice.service
[ "$(property ActiveState)" = inactive ]
passed "without a config the service is not started, and that is not a failure"

systemctl is-enabled sluice.service || true
mkdir -p /etc/sluice /srv/store
cp /task/node.yaml /etc/sluice/node.yaml
cp /task/*.safetensors /srv/store/
systemd-run --quiet --unit=store sluice share /srv/store --listen 127.0.0.1:8000
systemctl enable --now sluice.service
[ "$(property ActiveState)/$(property SubState)/$(property Type)" = active/running/notify ]
until_ready
ask /healthz | grep '^HTTP/1.[01] 200'
[ -n "$(property StatusText)" ] && property StatusText
cmp /srv/store/small.safetensors /run/sluice/models/small/current/small.safetensors
sluice pool attach pooled --json
[ "$(fetched)" -ge {bytes} ]
passed "started, ready, healthy: both models are there"

until [ "$(property NFileDescriptorStore)" -ge 2 ]; do sleep 1; done
systemctl stop store.service
systemctl restart sluice.service
until_ready
sluice pool attach pooled --json
[ "$(fetched)" = 0 ]
passed "restarted without the models' source: both are still there, $(property NFileDescriptorStore) descriptors kept"

before=$(property MainPID)
kill -9 "$before"
until_is NRestarts 1
until_is ActiveState active
[ "$(property MainPID)" != "$before" ]
until_ready
sluice pool attach pooled --json
[ "$(fetched)" = 0 ]
passed "killed: started again by systemd, and both models are still there"

cp /srv/store/small.safetensors /srv/store/late.safetensors
systemd-run --quiet --unit=store sluice share /srv/store --listen 127.0.0.1:8000
cat /task/late.yaml >>/etc/sluice/node.yaml
before=$(property MainPID)
systemctl reload sluice.service
sluice wait /run/sluice/models/late/current
echo 'nonsense: 1' >>/etc/sluice/node.yaml
systemctl reload sluice.service
until journalctl -u sluice.service -o cat --no-pager | grep -F "nonsense"; do sleep 1; done
[ "$(property MainPID)/$(property ActiveState)" = "$before/active" ]
passed "reloaded: a new model is loaded; a config with a mistake changes nothing, and the journal names the mistake"

systemctl restart sluice.service || true
[ "$(property ActiveState)/$(property ExecMainStatus)" = failed/2 ]
[ "$(property NRestarts)" -le 1 ]
passed "a config with a mistake ends the start with 2, and it is not tried again"

sed -i '$d' /etc/sluice/node.yaml
systemctl reset-failed sluice.service
systemctl start sluice.service
until_ready
systemctl stop sluice.service
[ "$(property Result)/$(property ExecMainStatus)" = success/0 ]
[ ! -e /run/sluice/pool.sock ] && [ ! -e /run/sluice/control.sock ]
[ -e /run/sluice/models/small/current/small.safetensors ]
passed "stopped: exit code 0, no socket is left, the directory of models is"

systemctl start sluice.service
until_ready
systemctl stop store.service
rm -rf /srv/store
dpkg --purge sluice
if grep -qx sluice /proc/[0-9]*/comm; then false; fi
[ "$(systemctl show -P LoadState sluice.service)" = not-found ]
rm -rf /etc/sluice /run/sluice
files >/tmp/after
diff /tmp/before /tmp/after
passed "removed while it ran: no process, no unit, no file is left"
"""


def safetensors(name):
    head = b'{"w": {"dtype": "U8", "shape": [%d], "data_offsets": [0, %d]}}' % (MODEL_BYTES, MODEL_BYTES)
    return struct.pack("<Q", len(head)) + head + (name.encode() * (MODEL_BYTES // len(name) + 1))[:MODEL_BYTES]


def make_system(place):
    """A Debian 12 with systemd."""
    if os.geteuid():
        raise Skip("only root makes a system")
    script = ('set -euo pipefail; . scripts/lib.sh; . scripts/roots.sh; keys=$(keyring_of debian "$1.keys"); '
              'retry make_root debian bookworm "$1" "$(mirror_of debian bookworm)" "$keys" --include=systemd,systemd-sysv,ca-certificates')
    done = subprocess.run(["bash", "-c", script, "bash", place], cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise Skip(f"no Debian 12 can be made: {(done.stdout + done.stderr)[-500:]}")


def boot(h, dist):
    packages = glob.glob(os.path.join(dist, "sluice_*_amd64.deb"))
    assert len(packages) == 1, f"no sluice_*_amd64.deb in '{dist}': scripts/release makes one"
    place, files = h.directory("files"), {"task.service": UNIT, "node.yaml": CONFIG, "late.yaml": MODEL.format(name="late")}
    files["node.yaml"] += MODEL.format(name="small") + MODEL.format(name="pooled") + "sink: {pool: {}}\n"
    for name, text in files.items():
        with open(os.path.join(place, name), "w") as file:
            file.write(text)
    for name in ("small", "pooled"):
        with open(os.path.join(place, name + ".safetensors"), "wb") as file:
            file.write(safetensors(name))
    root = os.environ.get("SLUICE_SYSTEMD_ROOT") or os.path.join(h.disk, "system")
    if not os.path.isdir(root):
        make_system(root)
    machine = Emulated(h, MEMORY_MIB, machine=root, begin=SYSTEM, files=[os.path.join(place, name) for name in os.listdir(place)] + packages)
    counts = {"ok": 0, "FAIL": 1, "skip": 0}  # one, until it has ended well
    for line in machine.lines(SCRIPT.format(step=STEP, bytes=2 * MODEL_BYTES), SECONDS, KERNEL):
        if line.startswith(STEP):
            counts["ok"] += 1
        if line == ENDED + "0":
            counts["FAIL"] = 0
        print(line, flush=True)
    return counts


def main():
    if {"-h", "--help"} & set(sys.argv[1:]):
        print(__doc__.strip())
        return 0
    dist = os.path.abspath(sys.argv[1]) if len(sys.argv) > 1 else os.path.join(ROOT, "build-release", "dist")
    h = Harness(os.path.join(ROOT, "build", "sluice"))
    try:
        counts = boot(h, dist)
    except Skip as why:
        print(f"skip systemd: {why}")
        counts = {"ok": 0, "FAIL": 0, "skip": 1}
    finally:
        h.close()
    print(f"{counts['ok']} passed, {counts['FAIL']} failed, {counts['skip']} skipped")
    return 1 if counts["FAIL"] else 0


if __name__ == "__main__":
    sys.exit(main())
