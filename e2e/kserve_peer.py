"""KServe's own storage initializer at work, in a Python that has its package.

    kserve_peer.py < CASES      a JSON list of {"environment": {…}, "arguments": [SRC, DST, …]}

Prints a JSON list of {"code": 0 or 1, "message": "…"}. Each case runs in a process of its own, forked after the
imports, which take longer than the work.
"""
import json
import os
import sys
import tempfile

import boto3  # noqa: F401  (imported before the forks)
import botocore.session  # noqa: F401
from kserve_storage import Storage

AT_ONCE = 4


def work(case, answer):
    os.environ.clear()
    os.environ.update(case["environment"], PATH="/usr/bin:/bin")
    os.chdir("/")
    os.umask(0o022)
    sources, targets = case["arguments"][::2], case["arguments"][1::2]
    try:
        Storage.download_files(sources, targets)
        json.dump({"code": 0, "message": ""}, answer)
    except BaseException as error:  # whatever it is, its entry point ends with 1
        json.dump({"code": 1, "message": f"{type(error).__name__}: {error}"}, answer)
    answer.flush()


def start(case):
    answer = tempfile.TemporaryFile("w+")
    child = os.fork()
    if child == 0:
        os.dup2(2, 1)  # its log goes to stderr
        work(case, answer)
        os._exit(0)
    return child, answer


def end(child, answer):
    os.waitpid(child, 0)
    with answer:
        answer.seek(0)
        return json.load(answer)


running, answers = [], []
for wanted in json.load(sys.stdin):
    running.append(start(wanted))
    if len(running) == AT_ONCE:
        answers.append(end(*running.pop(0)))
answers += [end(*one) for one in running]
json.dump(answers, sys.stdout)
