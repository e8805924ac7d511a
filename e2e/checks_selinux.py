"""What SELinux lets containers have of a node daemon: on Debian's kernel, in an emulated machine that enforces a policy."""
import json
import os
import re
import subprocess
import sys

from harness import ROOT, check, need_program

ROOMS = ("node/pool_server", "node/volumes", "node/csi")
LATE = True
NODE = os.path.join(ROOT, "e2e", "selinux_node.py")
POLICY = os.path.join(ROOT, "e2e", "selinux.cil")
PUBLIC = "system_u:object_r:container_file_t:s0"
KERNEL = "security=selinux selinux=1 audit=0"  # denials are not told on the console, in the midst of what is
IN_SELINUX = """
mount -t sysfs none /sys
mount -t selinuxfs none /sys/fs/selinux
mkdir -p {place}
echo {policy} | base64 -d >{place}/policy
echo {other} | base64 -d >{place}/other
{python} {node} {program} {place}/policy {place}/other
"""


def compiled(h, text):
    """The policy as a kernel loads it, in base64."""
    folder = h.directory("selinux")
    source, made = os.path.join(folder, "policy.cil"), os.path.join(folder, "policy")
    with open(source, "w") as file:
        file.write(text)
    subprocess.run([need_program("secilc", "/usr/bin/secilc"), "-M", "true", "-c", "33", "-o", made, "-f", os.devnull, source], check=True)
    return subprocess.run(["base64", "-w0", made], capture_output=True, text=True, check=True).stdout


@check("debian_kernel")
def selinux_lets_pods_read(h, kernel):
    """Enforcing: a confined container reads models and connects to the pool through volumes; without the label, or with another's, not."""
    with open(POLICY) as file:
        text = file.read()
    policies = compiled(h, text), compiled(h, text.replace("container_file_t", "strange_file_t"))
    out = kernel.run(IN_SELINUX.format(place="/root/selinux", policy=policies[0], other=policies[1], python=sys.executable, node=NODE,
                                       program=h.program), KERNEL)
    found = re.search(r"^\{\"enforcing\".*\}$", out, re.MULTILINE)
    assert found, out[-4000:]
    told = json.loads(found[0])
    assert told["enforcing"] == "1", told
    for step in ("auto", "again"):
        one = told[step]
        reached = {key: one[key][0] for key in ("file", "volume", "listed", "socket", "own_socket")}
        assert reached == {"file": True, "volume": True, "listed": True, "socket": True, "own_socket": False}, one
        assert one["label"] == one["socket_label"] == PUBLIC and one["whole"] and one["ended"] == 0, one
        assert not one["seclabel"], "a runtime would label the files of a read-only mount, and fail"
        assert not any("SELinux" in line for line in one["warnings"]), one["warnings"]
    for step in ("none", "kept", "private", "no_types"):
        one = told[step]
        denied = {key: one[key] for key in ("file", "volume") if one[key][0] or "Permission denied" not in one[key][1]}
        assert not denied and one["whole"] and one["ended"] == 0, (step, one)
    assert any("has the SELinux label" in line for line in told["kept"]["warnings"]), told["kept"]
    assert not told["none"]["socket"][0] and told["none"]["seclabel"], told["none"]
    assert told["private"]["label"].endswith(":s0:c3,c4"), told["private"]
    assert told["unknown"][0] == 6 and "set 'selinuxLabel'" in told["unknown"][1], told["unknown"]
    assert any("has no SELinux label for containers" in line for line in told["no_types"]["warnings"]), told["no_types"]
    return f"Linux {kernel.version}: read with the label, denied without it and with another's"
