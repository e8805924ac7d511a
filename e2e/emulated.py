"""Another kernel than this machine's: Debian's own, in an emulated processor (qemu), over this machine's files.

The files are seen where they are; what it changes is in its own memory, or on a disk of its own. It is slow, some twenty
times, so it shows that something works, and never how fast.
"""
import os
import re
import shutil
import subprocess
import threading

from harness import CACHE, Skip, fixture, need_program, one_at_a_time, run_client

# What the initial files need for the 9p share, and what a kernel's TLS needs.
MODULES = ("virtio_pci", "9pnet_virtio", "9p", "overlay", "tls", "gcm", "ghash_generic", "ctr", "aesni_intel",
           "chacha20poly1305", "chacha_generic", "poly1305_generic")
DISK_MODULES = ("virtio_blk", "ext4")
MEMORY_MIB, PROCESSORS, SECONDS = 1024, 2, 900
ENDED = "TASK ENDED WITH "
INIT = """#!/bin/busybox sh
b=/bin/busybox
$b mount -t proc none /proc
$b mount -t devtmpfs none /dev
for module in /modules/*; do $b insmod $module; done
$b mount -t 9p -o trans=virtio,version=9p2000.L,ro,msize=524288,cache=loose machine /machine
[ -b /dev/vda ] && $b mount -t ext4 /dev/vda /changes || $b mount -t tmpfs none /changes
$b mkdir /changes/files /changes/work
$b mount -t overlay -o lowerdir=/machine,upperdir=/changes/files,workdir=/changes/work none /root
$b mount -t proc none /root/proc
$b mount --bind /dev /root/dev
$b mkdir /dev/shm
$b mount -t tmpfs none /root/dev/shm
$b ip link set lo up
BEGIN
"""
# What runs there: a script and nothing else.
SCRIPT_ALONE = """$b cp /task/task /root/.task
exec $b switch_root /root /bin/bash -c '/bin/bash </.task; echo "ENDED$?"; /bin/busybox poweroff -f'""".replace("ENDED", ENDED)


@one_at_a_time("kernel")
def unpacked_kernel():
    """A directory with /boot/vmlinuz-VERSION and /lib/modules/VERSION, got from the distribution once."""
    place = os.path.join(CACHE, "kernel")
    if os.path.exists(os.path.join(place, "done")):
        return place
    found = subprocess.run(["apt-cache", "depends", "linux-image-amd64"], capture_output=True, text=True)
    name = re.search(r"Depends: (linux-image-\S+-amd64)", found.stdout)
    if not name:
        raise Skip("apt knows no linux-image-amd64")
    shutil.rmtree(place, ignore_errors=True)
    os.makedirs(place)
    got = run_client(["apt-get", "-q", "download", name[1]], cwd=place)
    if got.returncode:
        raise Skip(f"{name[1]} cannot be had: {got.stderr[-200:]}")
    package = next(entry for entry in os.listdir(place) if entry.endswith(".deb"))
    subprocess.run(["dpkg-deb", "-x", package, "."], cwd=place, check=True)
    os.unlink(os.path.join(place, package))
    version = os.listdir(os.path.join(place, "lib", "modules"))[0]
    subprocess.run([need_program("depmod", "/sbin/depmod"), "-b", place, version], check=True)
    open(os.path.join(place, "done"), "w").close()
    return place


@fixture("debian_kernel", expensive=True)
class Emulated:
    """.run(script) runs a bash script there, as root; with a disk, what it changes lies there. machine: the folder that is its
    root; begin: what the initial program ends with; files: more of them beside the script, in /task of the initial files."""

    def __init__(self, h, memory_mib=MEMORY_MIB, disk_mib=0, machine="/", begin=SCRIPT_ALONE, files=()):
        self.h, self.memory_mib, self.machine, self.begin, self.files = h, memory_mib, machine, begin, files
        self.disk = self.make_disk(disk_mib) if disk_mib else None
        self.qemu = need_program("qemu-system-x86_64")
        self.busybox = need_program("busybox")
        need_program("cpio")
        self.place = unpacked_kernel()
        self.version = os.listdir(os.path.join(self.place, "lib", "modules"))[0]

    def make_disk(self, mib):
        path = os.path.join(self.h.disk, "disk.ext4")
        with open(path, "wb") as file:
            file.truncate(mib << 20)
        subprocess.run([need_program("mkfs.ext4", "/sbin/mkfs.ext4"), "-q", "-F", "-E", "lazy_itable_init=1", path], check=True)
        return path

    def module_files(self):
        """Those of MODULES and what they need, in the order of loading."""
        modprobe = need_program("modprobe", "/sbin/modprobe")
        for module in MODULES + (DISK_MODULES if self.disk else ()):
            shown = subprocess.run([modprobe, "-d", self.place, "-S", self.version, "--show-depends", module],
                                   capture_output=True, text=True, check=True)
            for line in shown.stdout.splitlines():
                if line.startswith("insmod "):
                    yield line.split()[1]

    def initial_files(self, script):
        """The archive that the kernel unpacks and starts."""
        root = self.h.fresh("initial")
        for directory in ("bin", "proc", "dev", "modules", "machine", "changes", "root", "task"):
            os.makedirs(os.path.join(root, directory))
        shutil.copy(self.busybox, os.path.join(root, "bin", "busybox"))
        for number, path in enumerate(dict.fromkeys(self.module_files())):
            shutil.copy(path, os.path.join(root, "modules", f"{number:02}-{os.path.basename(path)}"))
        for path in self.files:
            shutil.copy(path, os.path.join(root, "task"))
        for name, text in (("init", INIT.replace("BEGIN", self.begin)), ("task/task", script)):
            with open(os.path.join(root, name), "w") as file:
                file.write(text)
            os.chmod(os.path.join(root, name), 0o755)
        archive = os.path.join(self.h.disk, "initial.cpio")
        names = subprocess.run(["find", "."], cwd=root, capture_output=True, check=True)
        with open(archive, "wb") as file:
            subprocess.run(["cpio", "-o", "-H", "newc", "--quiet"], cwd=root, input=names.stdout, stdout=file, check=True)
        self.h.remove(root)
        return archive

    def command(self, script, more_kernel=""):
        more = ["-drive", f"file={self.disk},format=raw,if=virtio,cache=unsafe"] if self.disk else []
        return [self.qemu, "-accel", "tcg,thread=multi,tb-size=1024", "-cpu", "max", "-smp", str(PROCESSORS), "-m", str(self.memory_mib),
                "-nographic", "-no-reboot", "-net", "none", "-kernel", os.path.join(self.place, "boot", f"vmlinuz-{self.version}"),
                "-initrd", self.initial_files(script),
                "-virtfs", f"local,path={self.machine},mount_tag=machine,security_model=none,readonly=on,multidevs=remap", *more,
                "-append", f"console=ttyS0 quiet mitigations=off apparmor=0 {more_kernel}".rstrip()]

    def lines(self, script, seconds=SECONDS, more_kernel=""):
        """What the script prints, line by line; the machine ends with it, or after so many seconds. more_kernel: words of the
        kernel's command line."""
        process = subprocess.Popen(self.command(script, more_kernel), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        end = threading.Timer(seconds, process.kill)
        end.start()
        try:
            for line in process.stdout:
                yield line.decode(errors="replace").rstrip("\r\n")
        finally:
            end.cancel()
            process.kill()
            process.wait()

    def run(self, script, more_kernel=""):
        """What the script printed; its failure is the caller's."""
        out = "\n".join(self.lines(script, more_kernel=more_kernel))
        assert f"{ENDED}0" in out, out[-2000:]
        return out
