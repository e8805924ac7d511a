"""Runs named checks against the built program and counts them.

A check is a function with a docstring of one line, registered by @check. It raises AssertionError (or anything)
to fail and Skip to be left out. What it needs is made by fixtures, registered by @fixture. Everything a Harness makes lies
in two temporary directories: `disk` for what servers hold, `memory` on a tmpfs for what loads publish. Processes are started
through Harness.spawn and ended by id. Other harnesses run beside it, here and in other processes: what they share, as
ports and what is kept in CACHE, goes through free_port() and one_at_a_time().
"""
import atexit
import contextlib
import fcntl
import functools
import hashlib
import json
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
import urllib.request

from ports import free_port  # noqa: F401  (checks have it from here)

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
CACHE = os.environ.get("SLUICE_CACHE") or os.path.join(ROOT, ".cache")
# What a caller's environment must not decide: credentials, end points, proxies, trust.
SCRUBBED = ("AWS_", "HF_", "S3_", "SLUICE_", "http_proxy", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY",
            "no_proxy", "NO_PROXY", "SSL_CERT_", "CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE")


class Skip(Exception):
    """This machine has not what the check needs; the message says what."""


CHECKS = []
# Of fixtures by their names: what makes them, and which of them take long, so that one process makes and keeps them.
MAKERS, EXPENSIVE = {}, set()
# What a load does not decide by itself where bytes or requests are counted: pinned(), and readers_pinned() for a spec.
CONNECTIONS, RANGE_BYTES = 4, 1 << 20
# How much slower this machine may be than one of today, as an emulated one is: every limit is so many times as long.
SLOWER = int(os.environ.get("SLUICE_E2E_SLOWER", "1"))
# A second, in starts of the program (in_starts()).
SECOND = 100


class Check:
    """A function, and how it is to be run: alone if it measures time, or changes or fills something of the whole machine."""

    def __init__(self, function, needs, alone=False, smoke=False, late=False):
        self.function, self.needs, self.alone, self.smoke = function, needs, alone, smoke
        self.name, self.module, self.claim = function.__name__, function.__module__, function.__doc__
        # It builds, installs or boots a lot before it looks at anything, or measures time.
        self.late = late or function.__globals__.get("LATE", False)


def check(*needs, **how):
    """Register a check; needs are names of fixtures that are passed to it, in order, after the harness; how: see Check."""
    def add(function):
        CHECKS.append(Check(function, needs, **how))
        return function
    return add


def fixture(name, expensive=False):
    """Register what makes something that checks need: it is called with the harness."""
    def add(maker):
        assert name not in MAKERS, f"two fixtures are called '{name}'"
        MAKERS[name] = maker
        if expensive:
            EXPENSIVE.add(name)
        return maker
    return add


@contextlib.contextmanager
def only_one(name):
    """Of all processes that share CACHE, one at a time is in here."""
    place = os.path.join(CACHE, "locks")
    os.makedirs(place, exist_ok=True)
    with open(os.path.join(place, name), "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def one_at_a_time(name):
    """For functions that make something in CACHE, or in a folder of builds, unless it is there. Calls with this name wait for each
    other; it may be made of their arguments: "venv-{}"."""
    def add(function):
        @functools.wraps(function)
        def alone(*arguments, **options):
            with only_one(name.format(*arguments)):
                return function(*arguments, **options)
        return alone
    return add


def fixed(connections, range_bytes):
    """Words of readers.fixed."""
    return f"connections={connections} range-bytes={range_bytes}"


def pinned(*more, connections=CONNECTIONS, range_bytes=RANGE_BYTES):
    """Arguments of a load which asks for the same ranges each time, and for none twice because it is slow."""
    return ("--fixed", fixed(connections, range_bytes), *more)


def readers_pinned(connections=CONNECTIONS, range_bytes=RANGE_BYTES):
    """The same as a line of a spec."""
    return f"readers: {{fixed: '{fixed(connections, range_bytes)}'}}\n"


def choose(words, checks):
    """Those that a word means: the one of this name, all of the file of this name, or else all with it in their names; and
    the words that mean none."""
    chosen, unknown = [], []
    for word in words:
        found = [one for one in checks if word == one.name] or [one for one in checks if word == one.module] or \
                [one for one in checks if word in one.name]
        chosen += [one for one in found if one not in chosen]
        unknown += [] if found else [word]
    return chosen, unknown


def wait_for(what, probe, seconds=180):
    """Until probe() is true; it is asked every 20 ms. The limit is for what never happens: machines may be busy."""
    end = time.monotonic() + seconds * SLOWER
    while time.monotonic() < end:
        if probe():
            return
        time.sleep(0.02 * SLOWER)
    raise AssertionError(f"{what} did not happen within {seconds * SLOWER} s")


def in_starts(h, limit, attempt, tries=3):
    """The seconds that attempt() gives, the median of some, judged in starts of the program, measured in between: at most so many.
    A clock would judge the machine, which may be busy; a start takes about 10 ms where it is not."""
    seconds, starts = [], []
    for _ in range(tries):
        starts += [h.sluice("version").expect(0).seconds for _ in range(3)]
        seconds.append(attempt())
    took, start = statistics.median(seconds), statistics.median(starts)
    assert took <= limit * start, f"it took {took:.3f} s, {took / start:.1f} starts of {start:.3f} s, and {limit} are the limit"
    return took


def processor_seconds():
    """Of this process and of those that it has waited for."""
    return sum(os.times()[:4])


def catches_sigterm(process):
    """Has the program come so far that SIGTERM is handled?"""
    with open(f"/proc/{process.pid}/status") as file:
        caught = next(line for line in file if line.startswith("SigCgt"))
    return bool(int(caught.split()[1], 16) >> (signal.SIGTERM - 1) & 1)


def run_client(command, **options):
    """subprocess.run of a client that downloads something; networks hiccup, so up to three times."""
    for pause in (5, 15, None):
        done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, **options)
        if done.returncode == 0 or pause is None:
            return done
        time.sleep(pause)


def port_open(port):
    with socket.socket() as probe:
        probe.settimeout(10)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def need_program(name, *more):
    found = shutil.which(name) or next((path for path in more if os.access(path, os.X_OK)), None)
    if not found:
        raise Skip(f"no {name}")
    return found


def sha256_file(path):
    digest = hashlib.sha256()
    buffer = memoryview(bytearray(1 << 20))
    with open(path, "rb", buffering=0) as file:
        while count := file.readinto(buffer):
            digest.update(buffer[:count])
    return digest.hexdigest()


class Run:
    """What a finished sluice left behind."""

    def __init__(self, code, out, err, seconds):
        self.code, self.out, self.err, self.seconds = code, out, err, seconds

    def json(self):
        """The result on stdout; that of the only load where there is one."""
        value = json.loads(self.out)
        return value[0] if isinstance(value, list) and len(value) == 1 else value

    def expect(self, code, *words):
        assert self.code == code, f"exit code {self.code}, not {code}: {self.err.strip()[-800:]} {self.out[-300:]}"
        for word in words:
            assert word in self.err + self.out, f"'{word}' is not in: {self.err.strip()[-800:]}"
        return self


class Harness:
    def __init__(self, program, keep=False, base=None):
        self.program = os.path.abspath(program)
        self.keep = keep
        self.disk = tempfile.mkdtemp(prefix="sluice-e2e-", dir=base)
        shm = "/dev/shm" if os.access("/dev/shm", os.W_OK) and os.path.ismount("/dev/shm") else self.disk
        self.memory = tempfile.mkdtemp(prefix="sluice-e2e-", dir=shm)
        self.logs = os.path.join(self.disk, "logs")
        os.mkdir(self.logs)
        self.processes = []
        self.mounts = []
        self.fixtures = {}
        self.serial = 0
        self.makers = MAKERS
        atexit.register(self.close)
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda *_: sys.exit(1))

    # ---- processes ------------------------------------------------------------------------------

    def spawn(self, name, command, **options):
        """A server in the background, its output in logs/NAME.log; ended with the harness."""
        log = open(os.path.join(self.logs, name + ".log"), "ab")
        options.setdefault("stdout", log)
        options.setdefault("stderr", log)
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, **options)
        log.close()
        self.processes.append(process)
        return process

    def log_tail(self, name):
        try:
            with open(os.path.join(self.logs, name + ".log"), errors="replace") as log:
                return log.read()[-1500:]
        except OSError:
            return ""

    def serve(self, name, command, port, seconds=180, **options):
        """spawn, and wait until it listens."""
        process = self.spawn(name, command, **options)

        def up():
            if process.poll() is not None:
                raise AssertionError(f"{name} ended with {process.returncode}: {self.log_tail(name)}")
            return port_open(port)
        wait_for(f"{name} on port {port}", up, seconds)
        return process

    def stop(self, process, number=signal.SIGTERM):
        if process.poll() is None:
            process.send_signal(number)
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    # ---- sluice ---------------------------------------------------------------------------------

    def environment(self, extra=None):
        env = {key: value for key, value in os.environ.items() if not key.startswith(SCRUBBED)}
        env["HOME"] = self.directory("home")
        env["AWS_EC2_METADATA_DISABLED"] = "true"
        env.update(extra or {})
        return env

    def sluice(self, *arguments, env=None, timeout=300, cwd=None):
        start = time.monotonic()
        done = subprocess.run([self.program, *arguments], env=self.environment(env), timeout=timeout, cwd=cwd,
                              stdin=subprocess.DEVNULL, capture_output=True)
        return Run(done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace"),
                   time.monotonic() - start)

    def start(self, *arguments, env=None):
        """sluice in the background; said() tells what it wrote to stderr."""
        log = tempfile.TemporaryFile(dir=self.disk)
        process = subprocess.Popen([self.program, *arguments], env=self.environment(env), stdin=subprocess.DEVNULL,
                                   stdout=subprocess.DEVNULL, stderr=log)
        process.log = log
        self.processes.append(process)
        return process

    @staticmethod
    def said(process):
        """The end of what a process that was started wrote to stderr."""
        end = os.fstat(process.log.fileno()).st_size
        return os.pread(process.log.fileno(), 800, max(end - 800, 0)).decode(errors="replace")

    def load(self, uri, to, *arguments, env=None, timeout=300):
        return self.sluice("load", uri, "--to", to, "--json", "--progress", "none", *arguments, env=env,
                           timeout=timeout)

    # ---- places ---------------------------------------------------------------------------------

    def fresh(self, name="to"):
        """A path on the tmpfs that does not exist yet."""
        self.serial += 1
        return os.path.join(self.memory, f"{name}-{self.serial}")

    def directory(self, name):
        path = os.path.join(self.disk, name)
        os.makedirs(path, exist_ok=True)
        return path

    def remove(self, path):
        """A published directory is read-only, for its owner too."""
        for parent, _, _ in os.walk(path):
            os.chmod(parent, 0o700)
        shutil.rmtree(path, ignore_errors=True)

    # ---- fixtures and the run -------------------------------------------------------------------

    def fixture(self, name):
        """Made once, when first needed; its failure or Skip is that of every check which needs it."""
        if name not in self.fixtures:
            try:
                self.fixtures[name] = self.makers[name](self), None
            except (Exception, SystemExit) as error:  # kept: the next check gets it as well
                self.fixtures[name] = None, error
        value, error = self.fixtures[name]
        if error:
            raise error
        return value

    def try_checks(self, wanted):
        """Those that the words mean, or all, one after the other: {"ok": …, "FAIL": …, "skip": …}, a line for each as it ends."""
        counts = {"ok": 0, "FAIL": 0, "skip": 0}
        chosen, unknown = choose(wanted, CHECKS) if wanted else (CHECKS, [])
        for word in unknown:
            print(f"FAIL no check is called '{word}', --list names them", flush=True)
            counts["FAIL"] += 1
        for one in chosen:
            result, line, _ = self.try_check(one)
            print(line, flush=True)
            counts[result] += 1
        return counts

    def try_check(self, one):
        """(result, the line that tells it, (its seconds, those of processors for it and what it waited for)). A check that failed is not
        tried again."""
        start = begin = time.monotonic()
        used = processor_seconds()
        note, new = "", [need for need in one.needs if need not in self.fixtures]
        try:
            made = [self.fixture(need) for need in one.needs]
            begin, used = time.monotonic(), processor_seconds()
            note = one.function(self, *made) or ""
            result = "ok"
        except Skip as error:
            result, note = "skip", str(error)
        except Exception as error:
            result, note = "FAIL", f"{type(error).__name__}: {error}"
            if not isinstance(error, AssertionError):
                traceback.print_exc()
        seconds, making = time.monotonic() - begin, begin - start
        after = f" after {making:.1f} s for {', '.join(new)}" if making >= 1 else ""
        return result, f"{result:4} {one.name} ({seconds:.1f} s{after}){': ' + note if note else ''}", (seconds, processor_seconds() - used)

    @staticmethod
    def count(counts):
        """The last line, and the exit code."""
        print(f"{counts['ok']} passed, {counts['FAIL']} failed, {counts['skip']} skipped")
        return 1 if counts["FAIL"] or not counts["ok"] else 0

    def close(self):
        for process in reversed(self.processes):
            self.stop(process)
        self.processes = []
        for path in reversed(self.mounts):
            subprocess.run(["umount", path], check=False)
        self.mounts = []
        for path in (self.memory, self.disk):
            if self.keep:
                print(f"kept: {path}", file=sys.stderr)
            elif os.path.isdir(path):
                self.remove(path)


def http_get(url, timeout=60, context=None):
    """(status, body, headers) without raising for an error status, past any proxy."""
    handlers = [urllib.request.ProxyHandler({})]
    if context:
        handlers.append(urllib.request.HTTPSHandler(context=context))
    try:
        with urllib.request.build_opener(*handlers).open(url, timeout=timeout) as answer:
            return answer.status, answer.read(), dict(answer.headers)
    except urllib.error.HTTPError as error:
        return error.code, error.read(), dict(error.headers)


def bytes_done(url):
    """Of the first load that this server tells of."""
    try:
        loads = json.loads(http_get(url + "/v1/loads")[1])["loads"]
    except OSError:
        return 0
    return loads[0]["bytes_done"] if loads else 0
