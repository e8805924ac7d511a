"""Wheels that need nothing but a libc: made by scripts/wheel, installed into fresh environments, and used from there."""
import glob
import json
import os
import re
import shutil
import struct
import subprocess
import sys
import zipfile

from harness import CACHE, ROOT, Skip, check, fixture, one_at_a_time, run_client, sha256_file

ROOMS = ("lib/open", "packaging", "python")
LATE = True
PYTHONS = [f"3.{minor}" for minor in range(9, 15)]
AUDITWHEEL = "auditwheel==6.8.2"
# What the wheel has inside; a mapping of one of these would be the system's.
INSIDE = ("libcurl", "libcares", "libhiredis", "libsodium", "libyaml", "libjansson", "libisal")
USE = """
import os, sys, sluice
url, place = sys.argv[1:]
with sluice.open(url) as model:
    tensor = bytes(model["w"].memoryview())
assert tensor == bytes(range(16)), tensor
sluice.pull(url, place)
with sluice.open(os.path.join(place, os.path.basename(url))) as model:
    assert bytes(model["w"].memoryview()) == tensor
mapped = {os.path.basename(line.split()[-1]) for line in open("/proc/self/maps") if ".so" in line}
print(sluice.__version__, os.path.dirname(sluice.__file__), *sorted(mapped))
"""


@fixture("wheel", expensive=True)
@one_at_a_time("builds")
def make_wheel(h):
    """This processor's wheel, made once."""
    out = h.directory("wheel")
    if not glob.glob(os.path.join(out, "*.whl")):
        done = subprocess.run([os.path.join(ROOT, "scripts/wheel"), "--out", out], capture_output=True, text=True, stdin=subprocess.DEVNULL)
        if done.returncode == 3 or "scripts/deps static" in done.stderr:
            raise Skip(done.stderr.strip().splitlines()[-1])
        assert done.returncode == 0, (done.stdout + done.stderr)[-1500:]
    found = glob.glob(os.path.join(out, "*.whl"))
    assert len(found) == 1, found
    return found[0]


def pythons():
    """This machine's oldest and newest interpreter that the package is for, and the one that runs this: {version: path}."""
    found = {"%d.%d" % sys.version_info[:2]: sys.executable}
    for version in PYTHONS:
        places = [shutil.which(f"python{version}"), *sorted(glob.glob(os.path.expanduser(f"~/.pyenv/versions/{version}.*/bin/python{version}")))]
        found.update({version: place for place in places if place})
    runs = [version for version in PYTHONS if version in found and subprocess.run([found[version], "-c", ""], capture_output=True).returncode == 0]
    return {version: found[version] for version in (runs[0], "%d.%d" % sys.version_info[:2], runs[-1])}


def model_file(path):
    """A tensor w of four rows: bytes 0 to 15."""
    head = json.dumps({"w": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(head)) + head + bytes(range(16)))


def install_wheel(h, wheel, version, python):
    """A fresh environment of that Python, without a network, with the wheel alone; its Python."""
    place = os.path.join(h.directory("wheels"), version)
    if subprocess.run([python, "-m", "venv", place], capture_output=True).returncode:
        raise Skip(f"Python {version} makes no environments")
    done = subprocess.run([os.path.join(place, "bin", "python"), "-m", "pip", "install", "--quiet", "--no-index", wheel],
                          capture_output=True, text=True, env=h.environment())
    assert done.returncode == 0, f"Python {version}: {done.stderr[-800:]}"
    return os.path.join(place, "bin", "python")


@check("wheel", "nginx")
def wheels_open_models_in_fresh_environments(h, wheel, nginx):
    """One wheel for old Pythons and new ones: over HTTP and TLS, and from a file, with nothing of the system but libc; what pip removes is all of it."""
    model_file(os.path.join(nginx.root, "wheel.safetensors"))
    env = {**h.environment(), "SSL_CERT_FILE": nginx.ca}
    tried = []
    for version, interpreter in pythons().items():
        python = install_wheel(h, wheel, version, interpreter)
        for origin in (nginx.http, nginx.https):
            done = subprocess.run([python, "-c", USE, f"{origin}/wheel.safetensors", h.fresh("pulled")], capture_output=True, text=True,
                                  env=env, cwd=h.disk, stdin=subprocess.DEVNULL)
            assert done.returncode == 0, f"Python {version}: {done.stderr[-1500:]}"
        _, place, *mapped = done.stdout.split()
        assert "libsluice.so.0" in mapped and not [name for name in mapped if name.startswith(INSIDE)], mapped
        subprocess.run([python, "-m", "pip", "uninstall", "--quiet", "--yes", "sluice-weights"], check=True, capture_output=True)
        assert not os.path.exists(os.path.join(place, "libsluice.so.0")) and not glob.glob(os.path.join(place, "*.py")), os.listdir(place)
        tried.append(version)
    return "Python " + ", ".join(tried)


@one_at_a_time("auditwheel")
def auditwheel():
    """The folder of its environment, made once."""
    place = os.path.join(CACHE, AUDITWHEEL.replace("==", "-"))
    if not os.path.exists(os.path.join(place, "whole")):
        subprocess.run([sys.executable, "-m", "venv", "--clear", place], check=True, capture_output=True)
        done = run_client([os.path.join(place, "bin/python"), "-m", "pip", "install", "--quiet", AUDITWHEEL], env=dict(os.environ))
        if done.returncode:
            raise Skip("no package registry can be reached")
        open(os.path.join(place, "whole"), "w", encoding="utf-8").close()
    return place


@check("wheel")
def wheels_say_what_they_need_and_hold(h, wheel):
    """The tag is what auditwheel finds, no older; SBOM and notices name what is linked; the library shows functions of sluice alone."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        document = json.loads(archive.read(next(name for name in names if name.endswith("/sboms/sluice.spdx.json"))))
        library = archive.extract("sluice/libsluice.so.0", h.directory("wheel-library"))
    packages = {package["name"] for package in document["packages"]}
    assert {"sluice", "openssl", "curl", "jansson"} <= packages and "glibc" not in packages, packages
    assert document["packages"][0]["checksums"][0]["checksumValue"] == sha256_file(library)
    assert {"sluice/notices/libssl-dev", "sluice/libsluice-attach.so.0"} <= set(names), names
    shown = subprocess.run(["readelf", "--dyn-syms", "-W", library], capture_output=True, text=True, check=True).stdout
    own = [line.split()[7] for line in shown.splitlines() if re.search(r"FUNC +GLOBAL", line) and " UND " not in line]
    assert len(own) > 40 and all(name.startswith("sluice_") for name in own), own
    tag = re.search(r"-py3-none-(manylinux_2_\d+_\w+)\.whl$", wheel)
    assert tag, wheel
    place = auditwheel()
    said = subprocess.run([os.path.join(place, "bin/auditwheel"), "show", wheel], capture_output=True, text=True, check=True).stdout
    assert f'consistent\nwith the following platform tag: "{tag[1]}"' in said, said
    return f"{tag[1]}, {len(own)} functions, {os.path.getsize(wheel)} bytes"


@check("wheel")
def a_wheel_says_where_the_project_is(h, wheel):
    """SLUICE_PROJECT_URL is in the metadata; without it the metadata has no address, and text that is not an address is refused."""
    tools, = glob.glob(os.path.join(CACHE, "wheel-tools-*", "bin", "python"))[-1:]

    def metadata(address):
        return subprocess.run([tools, "-m", "hatchling", "metadata"], capture_output=True, text=True, cwd=os.path.join(ROOT, "python"),
                              env={**os.environ, "SLUICE_PROJECT_URL": address})

    assert json.loads(metadata("https://weights.example/sluice/").stdout)["urls"] == {"Homepage": "https://weights.example/sluice"}
    assert "urls" not in json.loads(metadata("").stdout)
    refused = metadata("weights")
    assert refused.returncode and "SLUICE_PROJECT_URL is 'weights'" in refused.stdout + refused.stderr, refused
    with zipfile.ZipFile(wheel) as archive:
        name, = (each for each in archive.namelist() if each.endswith("/METADATA"))
        assert "Project-URL:" not in archive.read(name).decode()
