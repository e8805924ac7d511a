"""The images: what is in them, that they can be made again bit by bit, and that a real engine makes and runs them."""
import hashlib
import json
import os
import shutil
import subprocess
import tarfile
import time

from checks_container import MODEL, SLOW, log_lines, model_bytes, served
from containers import sources_digest
from harness import CACHE, ROOT, Run, Skip, bytes_done, check, fixture, free_port, need_program, one_at_a_time, run_client, sha256_file, wait_for

ROOMS = ("packaging",)
LATE = True
USER = "12345:12345"
GPU_BYTES_MAX = 20_000_000
SOURCES = ("CMakeLists.txt", "LICENSE", "Dockerfile", ".dockerignore", "cmake", "packaging", "scripts", "src")


def sbom(root):
    with open(os.path.join(root, "usr/share/sluice/sbom.spdx.json")) as file:
        return json.load(file)


def versions(document):
    return {package["name"]: package["versionInfo"] for package in document["packages"]}


def copy_sources(h, name):
    """The sources without their history, as somebody else has them."""
    directory = h.directory(name)
    for part in SOURCES:
        source, target = os.path.join(ROOT, part), os.path.join(directory, part)
        if os.path.isdir(source):
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copyfile(source, target)
    return directory


def same_sources(image):
    """Somebody may be working on them while this runs; then the programs may differ."""
    if image.sources != sources_digest():
        raise Skip("the sources were changed meanwhile")


@check("image")
def image_archive_holds(h, image):
    """Program, certificates, SBOM with a version for every package, notices; a user that is not root; nothing writable."""
    files = [name for name in image.names if os.path.isfile(os.path.join(image.root, name))]
    for name in ("sluice", "etc/ssl/certs/ca-certificates.crt", "usr/share/sluice/sbom.spdx.json"):
        assert name in files, files
    config = image.config["config"]
    assert config["User"] == "65532:65532" and config["Entrypoint"] == ["/sluice"], config
    assert image.environment["SLUICE_LOG_FORMAT"] == "json"
    assert "SLUICE_LISTEN" not in image.environment and "ExposedPorts" not in config, config  # nobody asked for a port
    assert config["Labels"]["org.opencontainers.image.title"] == "sluice"
    with tarfile.open(image.archive) as outer:
        manifest = json.load(outer.extractfile("manifest.json"))[0]
        layer = outer.extractfile(manifest["Layers"][0]).read()
        for member in tarfile.open(fileobj=outer.extractfile(manifest["Layers"][0])):
            assert (member.uid, member.gid) == (0, 0) and not member.mode & 0o022, member.name
    assert image.config["rootfs"]["diff_ids"] == ["sha256:" + hashlib.sha256(layer).hexdigest()]
    document = sbom(image.root)
    packages = versions(document)
    missing = {"sluice", "curl", "openssl", "libmicrohttpd", "c-ares", "zlib", "glibc", "ca-certificates"} - set(packages)
    assert not missing and all(packages.values()), packages
    digests = {entry["name"]: entry["checksums"][0]["checksumValue"] for entry in document["packages"] if "checksums" in entry}
    assert digests["sluice"] == sha256_file(os.path.join(image.root, "sluice"))
    return f"{os.path.getsize(image.archive) / 1e6:.1f} MB, {len(packages)} packages, {len(files)} files"


@check("image", "static_full")
def image_is_reproducible(h, image, program):
    """Built again from a copy of the sources in folders of other names: the same program, and the same archive."""
    sources, build = copy_sources(h, "other-place"), os.path.join(h.disk, "b2")
    done = subprocess.run([os.path.join(sources, "scripts", "build"), "--static", "full", "--dir", build, "--target", "sluice"],
                          env=dict(os.environ, SLUICE_CACHE=CACHE), capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, (done.stdout + done.stderr)[-1500:]
    archive = os.path.join(h.disk, "again.tar")
    epoch = subprocess.run(["git", "-C", ROOT, "log", "-1", "--format=%ct"], capture_output=True, text=True).stdout.strip()
    again = os.path.join(h.disk, "sluice-again")
    subprocess.run(["strip", "-o", again, os.path.join(build, "sluice")], check=True)
    if sha256_file(again) != sha256_file(program):
        same_sources(image)
        raise AssertionError("the programs differ")
    for number in range(2):
        done = subprocess.run([os.path.join(ROOT, "scripts", "image"), "--archive", archive, "--program", again if number else program],
                              env=dict(os.environ, SOURCE_DATE_EPOCH=epoch or "0"), capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        digest, first = sha256_file(archive), digest if number else None
    assert digest == first, "the archives differ"
    return f"sha256 {sha256_file(program)[:16]}…, archive {digest[:16]}…"


RELEASES = ["bookworm", "bookworm-updates", "bookworm-security"]


def mirrors():
    """{release: URL} of the distribution, as this machine has them."""
    known = {}
    done = subprocess.run(["apt-get", "indextargets", "--format", "$(REPO_URI) $(RELEASE) $(COMPONENT)", "Created-By: Packages"],
                          capture_output=True, text=True)
    for line in done.stdout.splitlines():
        url, release, component = line.split()
        if release in RELEASES and component == "main" and url.startswith("http"):
            known[release] = url.rstrip("/")
    if "bookworm" not in known:
        raise Skip("apt has no mirror of Debian 12 for a base image")
    return known


def need_kernels():
    """The compiler for GPUs."""
    path = subprocess.run([os.path.join(ROOT, "scripts", "cuda-compiler"), "--path"], capture_output=True, text=True).stdout.strip()
    if not path:
        raise Skip("no compiler for GPUs: scripts/cuda-compiler gets it")
    return path


# ---- an engine --------------------------------------------------------------------------------------

class Engine:
    """dockerd with a folder of its own; without bridge and firewall rules, so it leaves the machine as it is."""

    def __init__(self, h):
        if os.getuid() != 0:
            raise Skip("an engine needs root")
        self.client = need_program("/usr/bin/docker", "/usr/bin/docker")
        daemon, self.h, directory = need_program("dockerd", "/usr/sbin/dockerd"), h, h.directory("docker")
        self.base_tar()
        self.socket = os.path.join(directory, "docker.sock")
        self.process = h.spawn("dockerd", [
            daemon, "--host", f"unix://{self.socket}", "--data-root", f"{directory}/data", "--exec-root", f"{directory}/exec",
            "--pidfile", f"{directory}/docker.pid", "--bridge", "none", "--iptables=false", "--ip-forward=false",
            "--ip-masq=false"])
        h.mounts.append(f"{directory}/exec/netns/default")  # it leaves the one of --network host
        self.env = dict(os.environ, DOCKER_HOST=f"unix://{self.socket}", DOCKER_BUILDKIT="1", DOCKER=self.client)

        def up():
            if self.process.poll() is not None:
                raise Skip(f"no engine can run here: {h.log_tail('dockerd').strip().splitlines()[-1]}")
            return os.path.exists(self.socket) and self.try_call("info").returncode == 0
        try:
            wait_for("the engine", up)
        except AssertionError:
            raise Skip("the engine does not start") from None
        with open(self.base_tar(), "rb") as file:
            done = subprocess.run([self.client, "import", "-", "debian:bookworm-slim"], env=self.env, stdin=file,
                                  capture_output=True, text=True)
        if done.returncode:
            raise Skip(f"the engine takes no image: {done.stderr.strip()[-200:]}")

    @one_at_a_time("base")
    def base_tar(self):
        """There is no registry, so the base image is made from the distribution's packages, once."""
        path = os.path.join(CACHE, "image-base.tar")
        if os.path.exists(path):
            return path
        root, places = os.path.join(self.h.directory("base"), "root"), mirrors()
        done = run_client([need_program("debootstrap", "/usr/sbin/debootstrap"), "--variant=minbase",
                           "--include=ca-certificates", "bookworm", root, places["bookworm"]], timeout=900)
        if done.returncode:
            raise Skip(f"debootstrap: {(done.stdout + done.stderr).strip().splitlines()[-1]}")
        with open(os.path.join(root, "etc/apt/sources.list"), "w") as file:
            file.writelines(f"deb {url} {release} main\n" for release, url in places.items())
        os.makedirs(CACHE, exist_ok=True)
        subprocess.run(["tar", "-C", root, "--exclude=./var/cache/apt/archives/*.deb", "--exclude=./var/lib/apt/lists/*",
                        "-cf", path + ".part", "."], check=True)
        os.rename(path + ".part", path)
        shutil.rmtree(root)
        return path

    def try_call(self, *arguments, **options):
        return subprocess.run([self.client, *arguments], env=self.env, capture_output=True, text=True,
                              stdin=subprocess.DEVNULL, **options)

    def call(self, *arguments, **options):
        done = self.try_call(*arguments, **options)
        assert done.returncode == 0, f"docker {arguments[0]}: {done.stderr[-1500:]}"
        return done.stdout

    def build(self, target):
        """scripts/image with this engine; the seconds that it took."""
        begin, tag = time.monotonic(), f"localhost/sluice:e2e-{target}"
        done = subprocess.run([os.path.join(ROOT, "scripts", "image"), "--target", target, "--tag", tag, "--network", "host"],
                              env=self.env, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=1800)
        assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
        return tag, time.monotonic() - begin

    def unpack(self, tag, name):
        """The files of an image, in a directory."""
        directory, box = self.h.directory(name), self.call("create", tag).strip()
        for path in ("/sluice", "/usr/share/sluice", "/etc/ssl/certs/ca-certificates.crt"):
            target = directory + os.path.dirname(path)
            os.makedirs(target, exist_ok=True)
            self.call("cp", f"{box}:{path}", target)
        self.call("rm", box)
        return directory

    def container(self, how, tag, arguments, options=(), network="host"):
        """docker run as Pod Security 'restricted' wants it, the volume a tmpfs; and the file of its message."""
        message = self.h.fresh("termination-log")
        with open(message, "w"):
            pass
        os.chmod(message, 0o666)
        done = self.try_call("run", how, "--read-only", "--cap-drop", "ALL", "--security-opt", "no-new-privileges",
                             "--user", USER, "--network", network, "--tmpfs", "/models:size=256m,mode=1777",
                             "--volume", f"{message}:/dev/termination-log", *options, tag, *arguments, timeout=300)
        return done, message

    def run(self, tag, *arguments, **options):
        begin = time.monotonic()
        done, message = self.container("--rm", tag, arguments, **options)
        run = Run(done.returncode, done.stdout, done.stderr, time.monotonic() - begin)
        with open(message) as file:
            run.message = file.read()
        return run


@fixture("engine", expensive=True)
def engine(h):
    return Engine(h)


@check("image", "engine")
def image_built_by_docker(h, image, docker):
    """The Dockerfile's target static: the files of the archive; with the same packages, the same program bit by bit."""
    tag, seconds = docker.build("static")
    ours, theirs = image.root, docker.unpack(tag, "docker-static")
    config = json.loads(docker.call("image", "inspect", tag))[0]["Config"]
    assert not config.get("ExposedPorts"), config
    for key in ("User", "Entrypoint", "Cmd", "Env", "Labels"):
        wanted = image.config["config"][key]
        assert config[key] == wanted or sorted(config[key]) == sorted(wanted), f"{key}: {config[key]}, not {wanted}"
    linked = [{name: version for name, version in versions(sbom(root)).items() if name != "ca-certificates"}
              for root in (ours, theirs)]
    same = linked[0] == linked[1]
    if same and sha256_file(f"{ours}/sluice") != sha256_file(f"{theirs}/sluice"):
        same_sources(image)
        raise AssertionError("the same packages, another program")
    size = int(json.loads(docker.call("image", "inspect", tag))[0]["Size"])
    return f"{seconds:.0f} s, {size / 1e6:.1f} MB; {'the same program' if same else 'other versions of packages'} as the archive's"


@check("image", "engine", "nginx", "minilm")
def image_runs_restricted(h, image, docker, nginx, minilm):
    """docker load of the archive; read-only, no capabilities, any uid: a load of a real model, exit codes and messages."""
    told = docker.call("load", "--input", image.archive)
    tag = told.split("Loaded image: ", 1)[1].strip()
    url = nginx.http + served(nginx, minilm)
    spec = os.path.join(h.disk, "container.yaml")
    with open(spec, "w") as file:
        file.write(f"apiVersion: sluice/v1alpha1\nkind: Model\nmetadata: {{name: model}}\nsource: {{uri: '{url}'}}\n"
                   f"sink: {{tmpfs: {{path: /models/m}}}}\nverify: {{sha256: {{{MODEL}: {minilm.sha256[MODEL]}}}}}\n")
    run = docker.run(tag, "load", "/spec/model.yaml", "--json", options=["--volume", f"{spec}:/spec/model.yaml:ro"]).expect(0)
    result = run.json()
    assert result["checks"] == 1, result
    assert result["bytes"] == model_bytes(minilm), result
    assert run.message.startswith("ok: 'model' is in /models/m"), run.message
    assert "is in" in log_lines(run)[-1]["message"]
    for code, begin, arguments in ((2, "error USAGE", ["load", "--nothing"]), (4, "error NOT_FOUND", ["load", url + ".no", "--to", "/models/m"]),
                                   (6, "error NO_SPACE", ["load", url, "--to", "/etc/m"])):
        failed = docker.run(tag, *arguments).expect(code)
        assert failed.message.startswith(begin), failed.message
        assert log_lines(failed)[-1]["level"] == "error", failed.err
    small = docker.run(tag, "load", url, "--to", "/models/m", options=["--memory", "100m"])
    assert small.code == 6 and "resources.limits.memory" in small.message, (small.code, small.err)
    nowhere = docker.run(tag, "load", "http://127.0.0.1:1/x", "--to", "/models/m", "--attempts", "1", "--unreachable-seconds", "0", network="none")
    assert nowhere.code == 7 and nowhere.message.startswith("error NET"), nowhere.message
    return run.message.strip()


@check("image", "engine", "nginx", "minilm", alone=True, late=True)  # it measures time
def image_stops_at_sigterm(h, image, docker, nginx, minilm):
    """docker stop in mid-load: the program is PID 1 and ends with 143, long before docker would kill it."""
    tag = docker.call("load", "--input", image.archive).split("Loaded image: ", 1)[1].strip()
    port = free_port()
    done, message = docker.container("--detach", tag, ["load", nginx.http + "/slow" + served(nginx, minilm), "--to", "/models/m", *SLOW],
                                     ["--env", f"SLUICE_LISTEN=127.0.0.1:{port}"])
    assert done.returncode == 0, done.stderr
    box = done.stdout.strip()
    wait_for("some bytes", lambda: bytes_done(f"http://127.0.0.1:{port}") > 0)
    begin = time.monotonic()
    docker.call("stop", "--time", "30", box)
    seconds = time.monotonic() - begin
    code = int(docker.call("inspect", "--format", "{{.State.ExitCode}}", box))
    docker.call("rm", box)
    with open(message) as file:
        text = file.read()
    assert code == 143 and seconds < 25 and text.startswith("error CANCELED"), (code, seconds, text)
    return f"{seconds:.1f} s with docker's own part"


@check("engine")
def image_gpu_is_built(h, docker):
    """The target gpu: libc and no distribution around the same program, with kernels for GPUs; it starts as any uid."""
    need_kernels()
    tag, seconds = docker.build("gpu")
    kernels = docker.run(tag, "version", "--json").expect(0).json()["gpu_kernels"]
    for arch in ("sm_80", "sm_90", "sm_100", "compute_80"):
        assert arch in kernels, kernels
    size = int(json.loads(docker.call("image", "inspect", tag))[0]["Size"])
    assert size < GPU_BYTES_MAX, size
    packages = versions(sbom(docker.unpack(tag, "docker-gpu")))
    assert {"glibc", "curl", "ca-certificates"} <= set(packages), packages
    return f"{seconds:.0f} s, {size / 1e6:.1f} MB, kernels: {kernels}"


@check()
def image_gpu_takes_kernels_of_its_own_sources_alone(h):
    """What is compiled for the target gpu beside the sources is refused when one of them has changed since."""
    compiler, script = need_kernels(), os.path.join(ROOT, "scripts", "cuda-compile")
    root, made, out = h.directory("kernels"), h.fresh("made"), h.fresh("image")
    shutil.copytree(os.path.join(ROOT, "src"), os.path.join(root, "src"))

    def call(*arguments):
        return subprocess.run([script, "--root", root, *arguments], capture_output=True, text=True)
    assert call("--compiler", compiler, "--make", made).returncode == 0
    assert call("--compiler", made, "--arch", "sm_90", "--out", out).returncode == 0
    with open(os.path.join(root, "src", "device", "kernels", "kernel_args.h"), "a") as file:
        file.write("\n")
    done = call("--compiler", made, "--arch", "sm_90", "--out", out)
    assert done.returncode == 1 and "other sources" in done.stderr, done.stderr
