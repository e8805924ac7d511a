"""Runs named checks against the built program and counts them.

A check is a function with a docstring of one line, registered by @check. It raises AssertionError (or anything)
to fail and Skip to be left out. Everything a run makes lies in two temporary directories: `disk` for what servers
hold, `memory` on a tmpfs for what loads publish. Processes are started through Harness.spawn and ended by id.
"""
import atexit
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

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
CACHE = os.environ.get("SLUICE_CACHE") or os.path.join(ROOT, ".cache")
# What a caller's environment must not decide: credentials, end points, proxies, trust.
SCRUBBED = ("AWS_", "HF_", "S3_", "SLUICE_", "http_proxy", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY",
            "no_proxy", "NO_PROXY", "SSL_CERT_", "CURL_CA_BUNDLE")


class Skip(Exception):
    """This machine has not what the check needs; the message says what."""


CHECKS = []
# How much slower this machine may be than one of today, as an emulated one is: every limit is so many times as long.
SLOWER = int(os.environ.get("SLUICE_E2E_SLOWER", "1"))
# A second, in starts of the program (in_starts()).
SECOND = 100


def check(*needs):
    """Register a check; needs are names of fixtures that are passed to it, in order, after the harness."""
    def add(function):
        CHECKS.append((function, needs))
        return function
    return add


def means(word, function):
    """Is it in the check's name, or the name of the file that has the check?"""
    return word in function.__name__ or word == function.__module__


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


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
        self.makers = {}
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
        """sluice in the background; its stderr is a pipe."""
        process = subprocess.Popen([self.program, *arguments], env=self.environment(env), stdin=subprocess.DEVNULL,
                                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.processes.append(process)
        return process

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

    def run(self, wanted, seconds=None):
        return self.count(self.try_checks(wanted, seconds))

    def try_checks(self, wanted, seconds=None):
        """{"ok": …, "FAIL": …, "skip": …}, a line for each check as it ends. After so many seconds no other begins."""
        begin = time.monotonic()
        counts = {"ok": 0, "FAIL": 0, "skip": 0}
        for word in wanted:
            if not any(means(word, function) for function, _ in CHECKS):
                print(f"FAIL no check is called '{word}', --list names them", flush=True)
                counts["FAIL"] += 1
        for function, needs in CHECKS:
            if wanted and not any(means(word, function) for word in wanted):
                continue
            if seconds and time.monotonic() - begin > seconds:
                print(f"skip {function.__name__} (0.0 s): the {seconds} s for all checks were over", flush=True)
                counts["skip"] += 1
                continue
            counts[self.try_check(function, needs)] += 1
        return counts

    def try_check(self, function, needs):
        """Its result, told in a line. A check that failed is not tried again."""
        start, note = time.monotonic(), ""
        try:
            note = function(self, *[self.fixture(need) for need in needs]) or ""
            result = "ok"
        except Skip as error:
            result, note = "skip", str(error)
        except Exception as error:
            result, note = "FAIL", f"{type(error).__name__}: {error}"
            if not isinstance(error, AssertionError):
                traceback.print_exc()
        print(f"{result:4} {function.__name__} ({time.monotonic() - start:.1f} s){': ' + note if note else ''}",
              flush=True)
        return result

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
