"""Headers of a checkpoint with one changed byte: sluice never reads other bytes than torch's own reader without a word."""
import json
import os
import subprocess
import zipfile

from harness import ROOT, Skip, check

ROOMS = ("model/format",)
TORCH = "/usr/bin/python3"  # the Python of Debian's python3-torch
READER = os.path.join(ROOT, "e2e", "torch_reader.py")


def torch_reads(*arguments):
    done = subprocess.run([TORCH, READER, *arguments], capture_output=True, text=True, timeout=300, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stderr[-600:]
    return done.stdout


def header_bytes(path):
    """Offsets of all that is not payload or padding: the heads of entries, their names, the directory, the end records."""
    with zipfile.ZipFile(path) as archive:
        for entry in archive.infolist():
            yield from range(entry.header_offset, entry.header_offset + 30 + len(entry.orig_filename))
        begin = archive.start_dir
    yield from range(begin, os.path.getsize(path))


def digests(h, path):
    """None where sluice refuses."""
    done = h.sluice("--json", "inspect", "--digest", path)
    assert done.code in (0, 5, 10), done.err
    return {t["name"]: t["sha256"] for t in done.json()["tensors"]} if done.code == 0 else None


@check()
def changed_headers_are_read_as_torch_reads_them_or_refused(h):
    """Each byte of a checkpoint's headers is changed: the tensors are those that were saved, or sluice refuses the file."""
    if subprocess.run([TORCH, "-c", "import torch, numpy"], capture_output=True).returncode:
        raise Skip("no torch: install python3-torch")
    path, folder = os.path.join(h.directory("torch-headers"), "m.pt"), h.directory("torch-headers/changed")
    torch_reads("save", path)
    with open(path, "rb") as file:
        data = file.read()
    for offset in header_bytes(path):
        with open(os.path.join(folder, f"{offset}.pt"), "wb") as file:
            file.write(data[:offset] + bytes([data[offset] ^ 0xff]) + data[offset + 1:])
    verdicts = json.loads(torch_reads("read", folder))
    right, others = digests(h, path), 0
    assert len(right) == 2 and len(verdicts) > 300, (right, len(verdicts))
    for name, expected in verdicts.items():
        found = digests(h, os.path.join(folder, name))
        others += expected is not None and expected != right
        assert found is None or found == right, f"byte {name} changed: other tensors than those that were saved"
        assert found is None or expected is None or found == expected, f"byte {name} changed: torch reads other tensors"
    assert others > 0, "torch found nothing else anywhere: does the check change headers?"
