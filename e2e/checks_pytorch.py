"""Checkpoints as torch writes them: with one changed byte sluice never reads other bytes than torch's own reader without a word, and
distributed ones are what was saved."""
import json
import os
import shutil
import subprocess
import zipfile

import torch2
from checks_python_doors import need_torch2
from harness import ROOT, Skip, check

ROOMS = ("model/format",)
TORCH = "/usr/bin/python3"  # the Python of Debian's python3-torch
READER = os.path.join(ROOT, "e2e", "torch_reader.py")
SAVER = os.path.join(ROOT, "tests", "data", "golden", "dcp", "make_golden.py")


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


def same_tensors(h, uri, expected, env):
    done = h.sluice("--json", "inspect", "--digest", uri, env=env).expect(0).json()
    found = {t["name"]: (t["shape"], t["bytes"], t["sha256"]) for t in done["tensors"]}
    assert found == {t["name"]: (t["shape"], t["nbytes"], t["sha256"]) for t in expected["tensors"]}, uri


@check("versitygw")
def distributed_checkpoints_are_what_torch_saved(h, store):
    """One process and four save; from S3 each tensor has the same bytes, read in place, converted and loaded."""
    need_torch2()
    folder, place = h.directory("torch-dcp"), os.path.join(store.root, "e2e", "dcp")
    done = subprocess.run([torch2.PYTHON, "-W", "ignore", SAVER, folder], capture_output=True, text=True, timeout=600, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stderr[-600:]
    shutil.copytree(folder, place)
    names = sorted(name for name in os.listdir(folder) if os.path.isdir(os.path.join(folder, name)))
    assert len(names) >= 6, names
    for name in names:
        with open(os.path.join(folder, name + ".json")) as file:
            expected = json.load(file)
        source, out, loaded = f"s3://e2e/dcp/{name}/", os.path.join(folder, name + ".safetensors"), h.fresh()
        same_tensors(h, source, expected, store.env())
        h.sluice("convert", source, out, env=store.env()).expect(0)
        same_tensors(h, out, expected, None)
        h.load(source, loaded, "--set", "sink.tmpfs.layout=safetensors", env=store.env()).expect(0)
        same_tensors(h, os.path.join(loaded, "model.safetensors"), expected, None)
    os.remove(os.path.join(place, "fsdp", ".metadata"))
    refused = h.sluice("inspect", "s3://e2e/dcp/fsdp/", env=store.env()).expect(10)
    assert "was not saved to its end" in refused.err, refused.err
