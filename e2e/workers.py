"""Runs checks in several processes side by side, each with a Harness of its own.

A worker gets its next check when it has ended one. What is expensive to make is made by one worker, which gets all checks
that need it. Checks that must be alone come last, one after the other. A worker that dies is a failure of its check; what it
left is taken away, and another takes its place.
"""
import ctypes
import json
import multiprocessing
import multiprocessing.connection
import os
import shutil
import signal
import subprocess
import sys
import time

import harness
import ports

CONTEXT = multiprocessing.get_context("fork")
# How long each check took here when it was last run: the longest begin first.
TIMES = os.path.join(harness.CACHE, "e2e-seconds.json")
LONG_SECONDS = 8
SLOWEST, ERROR_LINES = 10, 40
PATIENCE = 300  # seconds for its servers to end and its folders to go
PR_SET_PDEATHSIG = 1


def known_times():
    try:
        with open(TIMES, encoding="utf-8") as file:
            return json.load(file)
    except (OSError, ValueError):
        return {}


def keep_times(seconds):
    with harness.only_one("times"):
        with open(TIMES + ".part", "w", encoding="utf-8") as file:
            json.dump({**known_times(), **seconds}, file, indent=0, sort_keys=True)
        os.replace(TIMES + ".part", TIMES)


# ---- in a worker --------------------------------------------------------------------------------------

class Output:
    """Standard output and error of this process and of those it starts, kept in files."""

    def __init__(self, folder):
        self.real = [os.dup(number) for number in (1, 2)]
        self.paths = [os.path.join(folder, name) for name in ("output", "errors")]
        self.begins = [0, 0]
        for number, path in enumerate(self.paths, 1):
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            os.dup2(file, number)
            os.close(file)

    def new(self):
        """What came since the last call: [output, errors]."""
        sys.stdout.flush()
        sys.stderr.flush()
        found = []
        for number, path in enumerate(self.paths):
            with open(path, "rb") as file:
                file.seek(self.begins[number])
                found.append(file.read().decode(errors="replace"))
                self.begins[number] = file.tell()
        return found

    def end(self):
        sys.stdout.flush()
        sys.stderr.flush()
        for number, real in enumerate(self.real, 1):
            os.dup2(real, number)


def work(pipe, others, program, keep):
    """A worker's life: a check's number comes, its result goes, until None comes."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)  # it does not outlive who waits for it
    os.setpgid(0, 0)  # ^C is for the parent, which ends this one
    for other in others:
        other.close()
    ports.PORTS.forget()
    h = harness.Harness(program, keep)
    output = Output(h.logs)
    try:
        pipe.send((h.disk, h.memory))
        while (number := pipe.recv()) is not None:
            told = h.try_check(harness.CHECKS[number])
            pipe.send((*told, *output.new(), set(h.fixtures)))
    except (EOFError, BrokenPipeError):
        pass  # the parent is gone
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        output.end()
        h.close()


# ---- in the parent ------------------------------------------------------------------------------------

class Worker:
    """A process, and what it is at."""

    def __init__(self, others, program, keep):
        self.pipe, theirs = CONTEXT.Pipe()
        self.keep, self.busy, self.made, self.folders = keep, None, set(), ()
        self.process = CONTEXT.Process(target=work, args=(theirs, [self.pipe, *[other.pipe for other in others]], program, keep))
        self.process.start()
        theirs.close()

    def begin(self, number):
        self.busy, self.since = number, time.monotonic()
        try:
            self.pipe.send(number)
        except OSError:
            pass  # it has ended, as told() will see

    def told(self):
        """What it sends: a check's end; None if there is none."""
        message = self.pipe.recv()
        if not self.folders:
            self.folders = message
            return None
        *result, self.made = message
        return result

    def end(self, number=None):
        """Let it end after its check, or by a signal; whatever it left is ended and taken away."""
        try:
            if number:
                os.kill(self.process.pid, number)
            else:
                self.pipe.send(None)
        except OSError:
            pass  # it has ended
        self.pipe.close()

    def gone(self):
        """Wait for its end. As long as nobody waited for it, its number is nobody else's, nor that of its group."""
        limit = time.monotonic() + PATIENCE
        while os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None:
            if time.monotonic() > limit:
                os.kill(self.process.pid, signal.SIGKILL)
            time.sleep(0.02)
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except OSError:
            pass
        self.process.join()
        for folder in self.folders:
            unmount_below(folder)
            if not self.keep:
                shutil.rmtree(folder, ignore_errors=True)
        return self.process.exitcode


def unmount_below(folder):
    with open("/proc/self/mountinfo") as file:
        places = [line.split()[4] for line in file]
    for place in reversed(places):
        if place.startswith(folder + "/"):
            subprocess.run(["umount", place], check=False)


class Board:
    """Which check is whose: what is left, and who keeps which expensive fixture."""

    def __init__(self, checks):
        self.times = known_times()
        numbers = sorted((harness.CHECKS.index(one) for one in checks), key=lambda number: -self.seconds(number))
        self.together = [number for number in numbers if not harness.CHECKS[number].alone]
        self.alone = [number for number in numbers if harness.CHECKS[number].alone]
        self.keepers = {}
        self.groups = joined([self.dear(number) for number in numbers])

    def seconds(self, number):
        return self.times.get(harness.CHECKS[number].name, 1)

    @staticmethod
    def dear(number):
        return harness.EXPENSIVE.intersection(harness.CHECKS[number].needs)

    def group(self, number):
        """The expensive fixtures that go with those of a check, or None."""
        return next((group for group in self.groups if group & self.dear(number)), None)

    def next_for(self, worker):
        """The number of the check that it does next, or None: of those that nobody else keeps the fixtures of, first what
        needs expensive ones, its own before others, then what takes long, then that of which it has most."""
        def rank(number):
            missing = set(harness.CHECKS[number].needs) - worker.made
            seconds = self.seconds(number)
            mine = self.keepers.get(self.group(number)) is worker
            return (self.group(number) is None, not mine, -seconds if seconds >= LONG_SECONDS else 0, len(missing), number)
        found = [number for number in self.together if self.keepers.get(self.group(number), worker) is worker]
        if not found:
            return None
        number = min(found, key=rank)
        self.together.remove(number)
        if self.group(number):
            self.keepers[self.group(number)] = worker
        return number

    def forget(self, worker):
        self.keepers = {group: keeper for group, keeper in self.keepers.items() if keeper is not worker}


def joined(sets):
    """Sets that overlap, joined."""
    groups = []
    for each in sets:
        if each:
            touched = [group for group in groups if group & each]
            groups = [group for group in groups if group not in touched] + [frozenset(each.union(*touched))]
    return groups


class Workers:
    """The workers and their board."""

    def __init__(self, checks, count, program, keep=False, seconds=None):
        self.board, self.count, self.program, self.keep = Board(checks), count, program, keep
        self.limit = time.monotonic() + seconds if seconds else None
        self.limit_seconds, self.workers, self.took = seconds, [], {}
        self.counts = {"ok": 0, "FAIL": 0, "skip": 0}

    def run(self):
        """{"ok": …, "FAIL": …, "skip": …}"""
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda *_: sys.exit(1))
        try:
            if self.count == 1:
                self.run_here()
            else:
                self.run_all()
                self.end_all(None)
        finally:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            self.end_all(signal.SIGTERM)
            keep_times({name: round(seconds, 1) for name, (seconds, _) in self.took.items()})
        return self.counts

    def run_here(self):
        """In this process, file by file."""
        h = harness.Harness(self.program, self.keep)
        try:
            for number in sorted(self.board.together + self.board.alone):
                if not self.over(number):
                    result, line, took = h.try_check(harness.CHECKS[number])
                    self.took[harness.CHECKS[number].name] = took
                    self.tell(result, line)
        finally:
            h.close()

    def run_all(self):
        for _ in range(min(self.count, len(self.board.together))):
            self.workers.append(self.new())
        while self.board.together or any(worker.busy is not None for worker in self.workers):
            self.give_all()
            self.hear()
        while self.board.alone:
            self.end_all(None, but=1)
            number = self.board.alone.pop(0)
            if self.over(number):
                continue
            if not self.workers:
                self.workers.append(self.new())
            self.workers[0].begin(number)
            while any(worker.busy is not None for worker in self.workers):
                self.hear()

    def new(self):
        return Worker(self.workers, self.program, self.keep)

    def over(self, number):
        """Is the time over? Then it is skipped."""
        if not self.limit or time.monotonic() < self.limit:
            return False
        self.tell("skip", f"skip {harness.CHECKS[number].name} (0.0 s): the {self.limit_seconds} s for all checks were over")
        return True

    def give_all(self):
        for worker in self.workers:
            while worker.busy is None and (number := self.board.next_for(worker)) is not None:
                if not self.over(number):
                    worker.begin(number)

    def hear(self):
        """Wait until some worker says something, or ends."""
        waiting = {worker.pipe: worker for worker in self.workers if worker.busy is not None}
        for pipe in multiprocessing.connection.wait(list(waiting)) if waiting else []:
            worker = waiting[pipe]
            try:
                told = worker.told()
            except (EOFError, ConnectionError):
                self.died(worker)
                continue
            if told:
                result, line, took, output, errors = told
                self.took[harness.CHECKS[worker.busy].name] = took
                worker.busy = None
                self.tell(result, line, output, errors)

    def died(self, worker):
        one = harness.CHECKS[worker.busy]
        worker.pipe.close()
        self.workers.remove(worker)
        self.board.forget(worker)
        seconds, code = time.monotonic() - worker.since, worker.gone()
        self.tell("FAIL", f"FAIL {one.name} ({seconds:.1f} s): its worker ended with {code}")
        if self.board.together:
            self.workers.append(self.new())

    def tell(self, result, line, output="", errors=""):
        self.counts[result] += 1
        print(output + line, flush=True)
        if result == "FAIL":
            for row in errors.rstrip().splitlines()[-ERROR_LINES:]:
                print("     " + row, flush=True)

    def end_all(self, number, but=0):
        """End the workers, but so many of them, those that have made most of what is needed alone."""
        needs = {need for one in self.board.alone for need in harness.CHECKS[one].needs}
        ending = sorted(self.workers, key=lambda worker: -len(worker.made & needs))[but:]
        for worker in ending:
            worker.end(number)
        for worker in ending:
            self.workers.remove(worker)
            code = worker.gone()
            if number is None and code:
                print(f"e2e/run: a worker ended with {code}", file=sys.stderr, flush=True)

    def slowest(self):
        """In seconds, and those of processors: on a busy machine the one grows, and the other hardly does."""
        rows = sorted(self.took.items(), key=lambda row: -row[1][0])[:SLOWEST]
        return "\n".join(["slowest:", *(f"  {took:6.1f} s, of processors {used:5.1f} s  {name}" for name, (took, used) in rows)])
