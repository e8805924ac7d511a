"""Run one client once and measure it: wall, CPU of its tree, peak memory, what else the machine did."""
import os
import subprocess
import threading
import time

TICKS = os.sysconf("SC_CLK_TCK")


def warm(directory, size):
    """Take and give back the destination's memory, so that a virtual machine's host need not find it in the timed
    part."""
    path = os.path.join(directory, "warm")
    fd = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
    try:
        os.posix_fallocate(fd, 0, size)
    finally:
        os.close(fd)
        os.unlink(path)


def busy_seconds():
    with open("/proc/stat") as file:
        user, nice, system, _, _, irq, soft = map(int, file.readline().split()[1:8])
    return (user + nice + system + irq + soft) / TICKS


def process_seconds(pid):
    """CPU of one server process and the children it has now."""
    total = 0
    for each in [pid, *children(pid)]:
        try:
            with open(f"/proc/{each}/stat") as file:
                fields = file.read().rsplit(")", 1)[1].split()
            total += (int(fields[11]) + int(fields[12])) / TICKS
        except OSError:
            pass
    return total


def children(pid):
    try:
        with open(f"/proc/{pid}/task/{pid}/children") as file:
            return [int(word) for word in file.read().split()]
    except OSError:
        return []


def memory_of(pid):
    """(VmHWM, RssAnon) in KiB of one process."""
    found = {"VmHWM": 0, "RssAnon": 0}
    try:
        with open(f"/proc/{pid}/status") as file:
            for line in file:
                name, _, value = line.partition(":")
                if name in found:
                    found[name] = int(value.split()[0])
    except OSError:
        pass
    return found["VmHWM"], found["RssAnon"]


class Sampler(threading.Thread):
    """Largest VmHWM of a process, and largest RssAnon of it and its children, read every 10 ms until it ends."""

    def __init__(self, pid):
        super().__init__(daemon=True)
        self.pid, self.hwm, self.anon, self.stopped = pid, 0, 0, threading.Event()

    def run(self):
        while not self.stopped.is_set():
            samples = [memory_of(pid) for pid in [self.pid, *children(self.pid)]]
            self.hwm = max(self.hwm, *(sample[0] for sample in samples))
            self.anon = max(self.anon, sum(sample[1] for sample in samples))
            self.stopped.wait(0.01)


def run(command, env, servers, stdin=None, timeout=180):
    """A dict of seconds, cpu, hwm_bytes, anon_bytes, other (share of the machine that neither used), code, out."""
    log = subprocess.PIPE
    server_before, busy_before = sum(map(process_seconds, servers)), busy_seconds()
    start = time.monotonic()
    process = subprocess.Popen(command, env=env, stdin=subprocess.PIPE if stdin is not None else subprocess.DEVNULL,
                               stdout=log, stderr=subprocess.STDOUT)
    sampler = Sampler(process.pid)
    sampler.start()
    guard = threading.Timer(timeout, process.kill)
    guard.start()
    try:
        if stdin is not None:
            process.stdin.write(stdin.encode())
            process.stdin.close()
        out = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.monotonic() - start
        process.returncode = os.waitstatus_to_exitcode(status)
    finally:
        if process.returncode is None:
            process.kill()
        guard.cancel()
        sampler.stopped.set()
        sampler.join()
    cpu = usage.ru_utime + usage.ru_stime
    server = sum(map(process_seconds, servers)) - server_before
    other = max(0.0, busy_seconds() - busy_before - server - cpu) / (seconds * os.cpu_count())
    return {"seconds": seconds, "cpu": cpu, "server_cpu": server, "hwm_bytes": sampler.hwm * 1024,
            "anon_bytes": sampler.anon * 1024, "other": other, "code": process.returncode,
            "out": out.decode(errors="replace")}
