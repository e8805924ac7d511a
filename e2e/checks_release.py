"""What a release consists of: made, installed into fresh roots, and taken away again without a rest."""
import glob
import hashlib
import os
import re
import shutil
import subprocess

from harness import ROOT, Skip, check, need_program, one_at_a_time

ROOMS = ("packaging",)
LATE = True


def make_key(folder, name):
    """A throwaway key of minisign without a password: its file, and the public key as a word."""
    secret, public = os.path.join(folder, name + ".key"), os.path.join(folder, name + ".pub")
    subprocess.run(["minisign", "-G", "-W", "-p", public, "-s", secret], check=True, capture_output=True)
    with open(public, encoding="utf-8") as file:
        return secret, file.read().split("\n")[1]


@one_at_a_time("builds")
def release(h):
    """This processor's artefacts, made once; signed where there is minisign."""
    out = os.path.join(h.directory("release"), "dist")
    if not os.path.exists(os.path.join(out, "SHA256SUMS")):
        env = dict(os.environ)
        if shutil.which("minisign"):
            env["SLUICE_RELEASE_KEY"], word = make_key(h.directory("release"), "ours")
            with open(os.path.join(h.directory("release"), "word"), "w", encoding="utf-8") as file:
                file.write(word)
        done = subprocess.run([os.path.join(ROOT, "scripts/release"), "--out", out], env=env, capture_output=True, text=True)
        if done.returncode and "scripts/deps static" in done.stderr:
            raise Skip("no static libraries: scripts/deps static")
        assert done.returncode == 0, done.stdout[-500:] + done.stderr[-1500:]
        assert done.stdout.endswith("signed\n" if "SLUICE_RELEASE_KEY" in env else "UNSIGNED: --key signs SHA256SUMS\n"), done.stdout[-200:]
    return out


def files_below(root):
    return sorted(os.path.relpath(os.path.join(folder, name), root) for folder, _, names in os.walk(root) for name in names)


def one(out, pattern):
    found = glob.glob(os.path.join(out, pattern))
    assert len(found) == 1, (pattern, os.listdir(out))
    return found[0]


def install(out, *arguments):
    return subprocess.run(["sh", os.path.join(out, "install.sh"), *arguments], capture_output=True, text=True)


@check()
def release_tarball_is_verified_and_installed(h):
    """install.sh takes the tarball only if its checksum is right; what it installs runs, and goes without a rest."""
    out, prefix = release(h), h.fresh("prefix")
    os.makedirs(os.path.join(prefix, "bin"))
    os.makedirs(os.path.join(prefix, "share", "man"))
    for _ in range(2):  # again, as for a new version
        done = install(out, "--from", out, "--prefix", prefix)
        assert done.returncode == 0, done.stderr
    program = os.path.join(prefix, "bin/sluice")
    said = subprocess.run([program, "version"], capture_output=True, text=True, check=True).stdout
    assert said.startswith("sluice "), said
    names = files_below(prefix)
    for name in ("share/man/man1/sluice-load.1", "share/bash-completion/completions/sluice",
                 "share/zsh/site-functions/_sluice", "lib/systemd/system/sluice.service", "share/doc/sluice/LICENSE",
                 "share/doc/sluice/notices/libssl-dev", "share/doc/sluice/sbom.spdx.json"):
        assert name in names, (name, names)
    with open(os.path.join(prefix, "share/man/man1/sluice-load.1"), encoding="utf-8") as file:
        head = file.readline()
    assert re.search(r' 1 "20\d\d-\d\d-\d\d" ', head), head
    # Another version had a file more: it goes with the next one.
    old = os.path.join(prefix, "share/doc/sluice/of-another-version")
    with open(os.path.join(prefix, "share/doc/sluice/installed"), "a", encoding="utf-8") as file:
        file.write("share/doc/sluice/of-another-version\n")
    open(old, "w", encoding="utf-8").close()
    done = install(out, "--from", out, "--prefix", prefix)
    assert done.returncode == 0 and not os.path.exists(old), done
    assert f"note: {prefix}/bin is not in PATH" in done.stdout, done.stdout
    unit = open(os.path.join(prefix, "lib/systemd/system/sluice.service"), encoding="utf-8").read()
    assert f"ExecStart={prefix}/bin/sluice serve" in unit, unit
    assert install(out, "--uninstall", "--prefix", prefix).returncode == 0
    folders = sorted(os.path.relpath(folder, prefix) for folder, _, _ in os.walk(prefix))
    assert folders == [".", "bin", "share", "share/man"] and not files_below(prefix), "not what was there before"
    shutil.rmtree(prefix)
    assert install(out, "--from", out, "--prefix", prefix).returncode == 0
    assert install(out, "--uninstall", "--prefix", prefix).returncode == 0
    assert not os.path.exists(prefix)

    wrong = h.directory("wrong")
    for name in os.listdir(out):
        with open(os.path.join(out, name), "rb") as file:
            data = file.read()
        with open(os.path.join(wrong, name), "wb") as file:
            file.write(data[:-1] + bytes([data[-1] ^ 1]) if name.endswith(".tar.gz") else data)
    done = install(out, "--from", wrong, "--prefix", prefix)
    assert done.returncode and "does not match" in done.stderr, done.stderr
    assert not os.path.exists(program)
    # As `curl … | sh` whose connection breaks off: whatever came of the script does nothing.
    with open(os.path.join(out, "install.sh"), encoding="utf-8") as file:
        script = file.read()
    for end in range(0, len(script.rstrip()), 97):
        subprocess.run(["sh", "-s", "--", "--from", out, "--prefix", prefix], input=script[:end], text=True, capture_output=True, check=False)
    assert not os.path.exists(prefix)
    return f"{len(names)} files"


@check()
def release_signature_is_verified(h):
    """Given the public key, install.sh takes only what is signed by it: not another key's, not changed, not unsigned."""
    need_program("minisign")
    out, prefix, changed = release(h), h.fresh("prefix"), h.directory("changed")
    with open(os.path.join(h.directory("release"), "word"), encoding="utf-8") as file:
        word = file.read()
    done = install(out, "--from", out, "--prefix", prefix, "--key", word)
    assert done.returncode == 0 and done.stdout.startswith("sluice "), done.stderr
    assert install(out, "--uninstall", "--prefix", prefix).returncode == 0
    _, other = make_key(h.directory("release"), "other")
    for name in os.listdir(out):
        shutil.copy(os.path.join(out, name), changed)
    with open(os.path.join(changed, "SHA256SUMS"), "a", encoding="utf-8") as file:
        file.write("\n")
    for place, key in ((out, other), (changed, word)):
        done = install(out, "--from", place, "--prefix", prefix, "--key", key)
        assert done.returncode and "not signed by this key: nothing was installed" in done.stderr, done.stderr
    os.remove(os.path.join(changed, "SHA256SUMS.minisig"))
    done = install(out, "--from", changed, "--prefix", prefix, "--key", word)
    assert done.returncode and "SHA256SUMS.minisig" in done.stderr, done.stderr
    assert not os.path.exists(os.path.join(prefix, "bin/sluice"))


@check()
def release_packages_install_and_leave_nothing(h):
    """The .deb packages go into a fresh root of dpkg, and out of it again."""
    out, root = release(h), h.directory("root")
    need_program("dpkg")
    if os.geteuid():
        raise Skip("dpkg --root needs root")
    admin = os.path.join(root, "var/lib/dpkg")
    os.makedirs(os.path.join(admin, "updates"))
    os.makedirs(os.path.join(admin, "info"))
    open(os.path.join(admin, "status"), "w", encoding="utf-8").close()
    packages = [one(out, name) for name in ("sluice_*.deb", "libsluice0_*.deb", "libsluice-dev_*.deb")]
    dpkg = ["dpkg", f"--root={root}", "--force-depends", "--force-not-root", "--force-script-chrootless", "--log=/dev/null"]
    subprocess.run([*dpkg, "-i", *packages], check=True, capture_output=True)
    names = [name for name in files_below(root) if name.startswith("usr/")]
    for end in ("bin/sluice", "man1/sluice-load.1.gz", "sluice.service", "libsluice.so.0", "include/sluice.h", "sluice.pc",
                "libsluice-attach.a", "completions/sluice", "doc/sluice/notices/libssl-dev", "doc/sluice/sbom.spdx.json",
                "doc/libsluice0/notices/libssl-dev", "doc/libsluice0/sbom.spdx.json"):
        assert any(name.endswith(end) for name in names) or os.path.islink(os.path.join(root, end)), (end, names)
    said = subprocess.run([os.path.join(root, "usr/bin/sluice"), "version"], capture_output=True, text=True, check=True).stdout
    assert said.startswith("sluice "), said
    subprocess.run([*dpkg, "--purge", "sluice", "libsluice-dev", "libsluice0"], check=True, capture_output=True)
    left = [name for name in files_below(root) if name.startswith("usr/")]
    assert not left, left
    return f"{len(packages)} packages, {len(names)} files"


def judge(*libraries):
    return subprocess.run([os.path.join(ROOT, "scripts/library"), "--judge", *libraries], capture_output=True, text=True)


@check()
def release_library_needs_libc_alone(h):
    """libsluice0 names libc6 and nothing else; its libraries need, open and show no more; one with another library is refused."""
    package, folder = one(release(h), "libsluice0_*.deb"), h.directory("library")
    depends = subprocess.run(["dpkg-deb", "-f", package, "Depends"], capture_output=True, text=True, check=True).stdout
    assert depends.strip() == "libc6 (>= 2.28)", depends
    subprocess.run(["dpkg-deb", "-x", package, folder], check=True)
    libraries = sorted(glob.glob(os.path.join(folder, "usr/lib/*/*.so.0")))
    assert [os.path.basename(path) for path in libraries] == ["libsluice-attach.so.0", "libsluice.so.0"], libraries
    done = judge(*libraries)
    assert done.returncode == 0, done.stderr
    other = os.path.join(folder, "other.so")
    subprocess.run([need_program("cc"), "-shared", "-x", "c", "-", "-o", other, "-Wl,--no-as-needed", "-lz"], input=b"int sluice_one;", check=True)
    refused = judge(other)
    assert refused.returncode and "needs libz.so.1, which is more than libc" in refused.stderr, refused.stderr
    return done.stdout.strip().splitlines()[-1]


@check()
def release_checksums_cover_everything(h):
    """SHA256SUMS names every other file of the release, with its hash."""
    out = release(h)
    with open(os.path.join(out, "SHA256SUMS"), encoding="utf-8") as file:
        sums = dict(reversed(line.rstrip("\n").split("  ", 1)) for line in file)
    for pattern in ("sluice-*-linux-*.tar.gz", "sluice-*.spdx.json", "sluice_weights-*.whl", "sluice-image-*.oci.tar", "sluice-chart-*.tgz"):
        one(out, pattern)
    assert sorted(sums) == sorted(set(os.listdir(out)) - {"SHA256SUMS", "SHA256SUMS.minisig"}), sums
    for name, sum_ in sums.items():
        with open(os.path.join(out, name), "rb") as file:
            assert hashlib.sha256(file.read()).hexdigest() == sum_, name
    return f"{len(sums)} files"
