"""The image for GPUs, which holds a libc and no distribution, and images for several processors."""
import gzip
import hashlib
import io
import json
import os
import struct
import subprocess
import tarfile

from checks_image import sbom, versions
from containers import need_namespaces
from harness import CACHE, ROOT, Skip, check, need_program, one_at_a_time, sha256_file

ROOMS = ("packaging", "client/cuda")
LATE = True
SPEC = """apiVersion: sluice/v1alpha1
kind: Model
metadata: {name: m}
source: {uri: "file:///m.safetensors"}
sink: {pool: {device: "cuda:0"}}
"""
# Where runtimes put a driver: that of Debian, that of others, and what leads there.
DRIVER_PLACES = ("usr/lib/TRIPLET", "usr/lib64", "lib/TRIPLET", "lib64")
MODEL = "model.safetensors"


@one_at_a_time("builds")
def make_image(h, *arguments):
    """scripts/image --archive; the archive."""
    archive = os.path.join(h.disk, "made.tar")
    done = subprocess.run([os.path.join(ROOT, "scripts", "image"), "--archive", archive, *arguments], capture_output=True,
                          text=True, stdin=subprocess.DEVNULL)
    if done.returncode == 3:
        raise Skip(done.stderr.strip().splitlines()[-1])
    assert done.returncode == 0, (done.stdout + done.stderr)[-2000:]
    return archive


def fake_driver(h):
    """The tests' driver without a GPU, compiled here: a libcuda.so.1."""
    sources = [os.path.join(ROOT, "tests", "support", name) for name in os.listdir(os.path.join(ROOT, "tests", "support"))
               if name.startswith("fake_cuda") and name.endswith(".c")]
    folders = ("tests/support", "src/client/cuda", "src/device/kernels", "src/model/transform", "src/core/base")
    out = os.path.join(h.directory("driver-of-tests"), "libcuda.so.1")  # not where others work: torch loads it from there
    subprocess.run([need_program("gcc"), "-shared", "-fPIC", "-O1", "-w", "-D_GNU_SOURCE", "-o", out, *sources,
                    *(word for folder in folders for word in ("-iquote", os.path.join(ROOT, folder)))], check=True)
    return out


@check("static_most")
def image_gpu_holds_libc_alone(h, program):
    """No distribution in it: the program, libc and what NVIDIA's libraries link, certificates; all of them in the SBOM."""
    root = h.directory("gpu-root")
    with tarfile.open(make_image(h, "--target", "gpu", "--program", program)) as outer:
        config = json.load(outer.extractfile("config.json"))["config"]
        with tarfile.open(fileobj=outer.extractfile("layer.tar")) as layer:
            libraries = sorted(os.path.basename(name) for name in layer.getnames() if ".so." in name and "/lib/" in name)
            tops = sorted({name.split("/")[0] for name in layer.getnames()})
            layer.extractall(root)
    assert tops == ["etc", "lib", "lib64", "sluice", "usr"], tops
    assert len(libraries) == 7 and "libc.so.6" in libraries and "libgcc_s.so.1" in libraries, libraries
    assert "NVIDIA_DRIVER_CAPABILITIES=compute,utility" in config["Env"], config
    missing = {"sluice", "glibc", "curl", "openssl", "ca-certificates"} - set(versions(sbom(root)))
    assert not missing and any(name.startswith("gcc-") for name in versions(sbom(root))), missing
    notices = os.listdir(os.path.join(root, "usr/share/sluice/notices"))
    assert "libc6" in notices and "libgcc-s1" in notices, notices
    need_namespaces()
    driver, places = fake_driver(h), []
    triplet = os.path.basename(os.path.dirname(os.path.realpath(os.path.join(root, "usr/lib64/libc.so.6"))))
    with open(os.path.join(root, "spec.yaml"), "w") as spec, open(os.path.join(root, "m.safetensors"), "wb") as model:
        spec.write(SPEC)
        header = json.dumps({"a": {"dtype": "U8", "shape": [100], "data_offsets": [0, 100]}}).encode()
        model.write(struct.pack("<Q", len(header)) + header + bytes(100))

    def plan():
        return subprocess.run([need_program("chroot", "/usr/sbin/chroot"), "--userspec=12345:12345", root, "/sluice", "plan", "/spec.yaml"],
                              env={}, capture_output=True, text=True)
    none = plan()
    assert none.returncode == 9 and "no NVIDIA driver" in none.stderr, (none.returncode, none.stderr)
    for place in DRIVER_PLACES:
        target = os.path.join(root, place.replace("TRIPLET", triplet), "libcuda.so.1")
        with open(driver, "rb") as source, open(target, "wb") as file:
            file.write(source.read())
        found = plan()
        assert found.returncode == 0 and "cuda:0" in found.stdout, (place, found.stderr)
        os.unlink(target)
        places.append(place)
    size = sum(os.path.getsize(os.path.join(parent, name)) for parent, _, names in os.walk(root) for name in names)
    return f"{size / 1e6:.1f} MB, {len(libraries)} libraries; a driver is found in {', '.join(places)}"


# ---- several processors ----------------------------------------------------------------------------

class Index:
    """An OCI archive with an index, every digest of it checked; .images is {architecture: (config, root)}."""

    def __init__(self, h, archive):
        self.archive, self.images = tarfile.open(archive), {}
        assert json.load(self.archive.extractfile("oci-layout")) == {"imageLayoutVersion": "1.0.0"}
        top = json.load(self.archive.extractfile("index.json"))["manifests"]
        assert len(top) == 1 and top[0]["annotations"]["org.opencontainers.image.ref.name"] == "both", top
        for entry in json.loads(self.blob(top[0]))["manifests"]:
            manifest = json.loads(self.blob(entry))
            config, root = json.loads(self.blob(manifest["config"])), h.directory("root-" + entry["platform"]["architecture"])
            assert config["architecture"] == entry["platform"]["architecture"]
            layer = gzip.decompress(self.blob(manifest["layers"][0]))
            assert config["rootfs"]["diff_ids"] == ["sha256:" + hashlib.sha256(layer).hexdigest()]
            with tarfile.open(fileobj=io.BytesIO(layer)) as files:
                files.extractall(root)
            self.images[config["architecture"]] = config, root

    def blob(self, descriptor):
        content = self.archive.extractfile("blobs/" + descriptor["digest"].replace(":", "/")).read()
        assert hashlib.sha256(content).hexdigest() == descriptor["digest"].split(":")[1]
        assert len(content) == descriptor["size"]
        return content


@check("static_full", "nginx", "minilm")
def image_for_two_processors(h, program, nginx, minilm):
    """One archive for amd64 and arm64; the program of the other loads a real model over loopback, in qemu-user."""
    if subprocess.run([os.path.join(ROOT, "scripts", "deps"), "--check", "arm64"], capture_output=True).returncode:
        raise Skip("packages are missing: scripts/deps arm64")
    archive = make_image(h, "--platform", "linux/amd64,linux/arm64", "--tag", "localhost/sluice:both")
    index = Index(h, archive)
    assert set(index.images) == {"amd64", "arm64"}
    (ours, _), (theirs, root) = index.images["amd64"], index.images["arm64"]
    assert ours["config"] == theirs["config"]
    described = subprocess.run(["readelf", "-h", root + "/sluice"], capture_output=True, text=True, check=True).stdout
    assert "AArch64" in described and "program interpreter" not in described, described
    packages = versions(sbom(root))
    assert {"sluice", "curl", "openssl", "glibc", "ca-certificates"} <= set(packages) and all(packages.values()), packages
    run = [os.path.join(CACHE, "sysroot-arm64", "bin", "run"), root + "/sluice"]
    for origin in (nginx.http, nginx.https):
        with open(os.path.join(minilm.directory, MODEL), "rb") as source, open(os.path.join(nginx.root, MODEL), "wb") as file:
            file.write(source.read())
        to = h.fresh()
        done = subprocess.run([*run, "load", f"{origin}/{MODEL}", "--to", to, "--json", "--progress", "none"],
                              env=h.environment({"SSL_CERT_FILE": nginx.ca}), capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stderr[-1000:]
        assert sha256_file(os.path.join(to, MODEL)) == minilm.sha256[MODEL]
        assert subprocess.run([*run, "verify", to], capture_output=True).returncode == 0
        h.remove(to)
    return f"{os.path.getsize(archive) / 1e6:.1f} MB, {len(packages)} packages; loaded over HTTP and TLS by arm64's program"
