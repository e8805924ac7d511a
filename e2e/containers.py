"""Containers without an engine: what a runtime does for one process, from unshare, mount and chroot.

The root is that of the image which scripts/image --archive makes. A process in it is PID 1 of its namespace, has an
arbitrary user without a name, no capabilities, no home, a read-only root, the system calls of a runtime's default
profile, and what Kubernetes mounts: a volume, /dev/termination-log, /proc and the control groups.
"""
import ctypes
import hashlib
import json
import os
import platform
import struct
import subprocess
import tarfile
import time

from harness import ROOT, Run, Skip, fixture, need_program, sha256_file, wait_for

USER, VOLUME_GROUP = 12345, 4242
MOUNTS = r"""
set -e
mount --make-rprivate /
mount --bind "$C_ROOT" "$C_ROOT"
mount --bind "$C_VOLUME" "$C_ROOT/models"
mount -t proc proc "$C_ROOT/proc"
mount --rbind /sys/fs/cgroup "$C_ROOT/sys/fs/cgroup"
[ -z "$C_MESSAGE" ] || mount --bind "$C_MESSAGE" "$C_ROOT/dev/termination-log"
mount -o remount,bind,ro "$C_ROOT"
for group in $C_GROUPS; do echo 0 >"$group/cgroup.procs"; done
cd /
exec "$@"
"""
# Blocked by the default profiles of containerd and docker, for processes without capabilities, and two that old
# kernels lack: io_uring, mbind and its kin, userfaultfd, pidfd_getfd, perf, keyctl, clone3; copy_file_range, fadvise.
BLOCKED = (425, 426, 427, 237, 238, 239, 256, 279, 323, 438, 298, 248, 249, 250, 300, 326, 221)
UNKNOWN = (435,)  # clone3: ENOSYS, so that libc takes clone


def seccomp_filter():
    """A program of the kernel's filter machine as bytes: EPERM, ENOSYS, or allowed."""
    rules = [(0x20, 0, 0, 0)]  # load the number of the call
    for numbers, number_of_error in ((BLOCKED, 1), (UNKNOWN, 38)):
        for number in numbers:
            rules += [(0x15, 0, 1, number), (0x06, 0, 0, 0x00050000 | number_of_error)]
    rules.append((0x06, 0, 0, 0x7FFF0000))
    return b"".join(struct.pack("=HBBI", *rule) for rule in rules)


def install_filter():
    """For preexec_fn; nothing on machines whose call numbers are others."""
    if platform.machine() != "x86_64":
        return
    code = seccomp_filter()
    buffer = ctypes.create_string_buffer(code, len(code))
    program = struct.pack("@HxxxxxxP", len(code) // 8, ctypes.addressof(buffer))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(38, 1, 0, 0, 0) or libc.prctl(22, 2, ctypes.c_char_p(program), 0, 0):
        os._exit(99)


def sources_digest():
    """Of what a program is built from."""
    digest = hashlib.sha256()
    for part in ("cmake", "src"):
        for parent, folders, names in os.walk(os.path.join(ROOT, part)):
            folders.sort()
            for name in sorted(names):
                digest.update(sha256_file(os.path.join(parent, name)).encode())
    digest.update(sha256_file(os.path.join(ROOT, "CMakeLists.txt")).encode())
    return digest.hexdigest()


class Image:
    """The archive, unpacked; .root can be the root of containers, .config is the image's."""

    def __init__(self, h, program):
        self.sources = sources_digest()
        self.archive = os.path.join(h.directory("image"), "sluice.tar")
        self.root = h.directory("image-root")
        done = subprocess.run([os.path.join(ROOT, "scripts", "image"), "--archive", self.archive, "--program", program],
                              capture_output=True, text=True, stdin=subprocess.DEVNULL)
        assert done.returncode == 0, done.stderr
        with tarfile.open(self.archive) as outer:
            manifest = json.load(outer.extractfile("manifest.json"))[0]
            self.config = json.load(outer.extractfile(manifest["Config"]))
            with tarfile.open(fileobj=outer.extractfile(manifest["Layers"][0])) as layer:
                self.names = layer.getnames()
                layer.extractall(self.root)
        os.chmod(h.disk, 0o755)
        for name in ("models", "proc", "dev", "sys/fs/cgroup"):  # a runtime makes these
            os.makedirs(os.path.join(self.root, name))
        with open(os.path.join(self.root, "dev", "termination-log"), "w"):
            pass

    @property
    def environment(self):
        return dict(pair.split("=", 1) for pair in self.config["config"]["Env"])


@fixture("image", expensive=True)
def image(h):
    return Image(h, h.fixture("static_full"))


def need_namespaces():
    if os.getuid() != 0:
        raise Skip("containers need root")
    done = subprocess.run([need_program("unshare"), "--mount", "--pid", "--fork", "mount", "--make-rprivate", "/"],
                          capture_output=True, text=True)
    if done.returncode:
        raise Skip(f"no namespaces here: {done.stderr.strip()}")


class Pod:
    """A volume that outlives containers, and what its containers share."""

    def __init__(self, h, image_, volume_bytes):
        need_namespaces()
        self.h, self.image = h, image_
        self.volume = h.fresh("volume")
        os.makedirs(self.volume)
        options = f"size={volume_bytes},mode=2775,gid={VOLUME_GROUP}"
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", self.volume], capture_output=True, text=True)
        if done.returncode:
            raise Skip(f"no tmpfs can be mounted: {done.stderr.strip()}")
        h.mounts.append(self.volume)
        self.message_file = h.fresh("termination-log")
        with open(self.message_file, "w"):
            pass
        os.chmod(self.message_file, 0o666)

    def start(self, *arguments, env=None, groups=(), message=True):
        """A container; .pid1 is its process, stdout and stderr are pipes."""
        need_program("setpriv")
        enter = [need_program("unshare"), "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", MOUNTS, "sh",
                 "setpriv", "--no-new-privs", "--inh-caps=-all", need_program("chroot", "/usr/sbin/chroot"),
                 f"--userspec={USER}:{USER}", f"--groups={VOLUME_GROUP}", self.image.root, "/sluice"]
        inside = {"C_ROOT": self.image.root, "C_VOLUME": self.volume, "C_GROUPS": " ".join(groups),
                  "C_MESSAGE": self.message_file if message else ""}
        environment = {**self.image.environment, **inside, **(env or {})}
        environment["PATH"] = "/usr/sbin:/usr/bin:/sbin:/bin"
        process = subprocess.Popen([*enter, *arguments], env=environment, stdin=subprocess.DEVNULL,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=install_filter)
        self.h.processes.append(process)
        process.pid1 = None
        children = f"/proc/{process.pid}/task/{process.pid}/children"

        def found():
            try:
                with open(children) as file:
                    process.pid1 = int((file.read().split() or [0])[0])
                if process.pid1 and os.readlink(f"/proc/{process.pid1}/exe").endswith("/sluice"):
                    return True
            except OSError:
                pass
            return process.poll() is not None  # a short run may be over by now
        wait_for("the container's start", found)
        return process

    def run(self, *arguments, timeout=300, **options):
        begin = time.monotonic()
        process = self.start(*arguments, **options)
        return self.finish(process, begin, timeout)

    def finish(self, process, begin=None, timeout=300):
        out, err = process.communicate(timeout=timeout)
        return Run(process.returncode, out.decode(errors="replace"), err.decode(errors="replace"),
                   time.monotonic() - (begin or time.monotonic()))

    def signal(self, process, number):
        os.kill(process.pid1, number)

    def message(self):
        """The termination message, one line; gone afterwards, as for a new container."""
        with open(self.message_file) as file:
            text = file.read()
        os.truncate(self.message_file, 0)
        assert text.endswith("\n") and text.count("\n") == 1 and len(text) <= 4096, repr(text)
        return text[:-1]

    def used(self):
        """Bytes of the volume's memory."""
        space = os.statvfs(self.volume)
        return (space.f_blocks - space.f_bfree) * space.f_frsize

    def empty(self):
        for name in os.listdir(self.volume):
            path = os.path.join(self.volume, name)
            if os.path.isdir(path):
                self.h.remove(path)
            else:
                os.unlink(path)


class ControlGroup:
    """A group below our own for one controller, version 1 or 2."""

    def __init__(self, controller, files):
        """files: {version: {name: value}}."""
        need_namespaces()
        self.path = None
        version, parent = self.place(controller)
        path = os.path.join(parent, f"sluice-e2e-{os.getpid()}-{controller}")
        try:
            if version == 2:
                with open(os.path.join(parent, "cgroup.subtree_control"), "w") as file:
                    file.write(f"+{controller}")
            os.mkdir(path)
            self.path, self.version = path, version
            self.write(files)
        except OSError as error:
            self.close()
            raise Skip(f"no control group for {controller}: {error.strerror}") from error

    def write(self, files):
        for name, value in files[self.version].items():
            with open(os.path.join(self.path, name), "w") as file:
                file.write(value)

    def read(self, name):
        with open(os.path.join(self.path, name)) as file:
            return file.read()

    def used(self):
        return int(self.read("memory.usage_in_bytes" if self.version == 1 else "memory.current"))

    def kills(self):
        """How often the kernel has killed in it."""
        lines = self.read("memory.oom_control" if self.version == 1 else "memory.events").splitlines()
        return int(dict(line.split() for line in lines).get("oom_kill", 0))

    @staticmethod
    def place(controller):
        with open("/proc/self/cgroup") as file:
            lines = [line.rstrip("\n").split(":", 2) for line in file]
        for _, controllers, path in lines:
            if controller in controllers.split(","):
                for mount in (controller, controllers):
                    parent = f"/sys/fs/cgroup/{mount}"
                    if os.path.isdir(parent):
                        own = parent + path.rstrip("/")
                        return 1, own if os.path.isdir(own) else parent
        for _, controllers, path in lines:
            if not controllers and os.path.exists("/sys/fs/cgroup/cgroup.controllers"):
                own = "/sys/fs/cgroup" + path.rstrip("/")
                return 2, own if os.path.isdir(own) else "/sys/fs/cgroup"
        raise Skip(f"no control groups for {controller}")

    def close(self):
        if not self.path:
            return
        for _ in range(600):
            try:
                os.rmdir(self.path)
                return
            except OSError:
                time.sleep(0.05)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
