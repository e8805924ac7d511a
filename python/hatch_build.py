"""The wheel carries libsluice where a build of it is at hand, and is a wheel of that library's kind of machine then.

Looked for: $SLUICE_LIBRARY, then build/lib/ of the checkout, which is built if it is not there and can be: `pip install ./python` and
`pip install "git+URL#subdirectory=python"` are enough where scripts/deps has run. SLUICE_LIBRARY=none asks for none. What lies beside it comes with it: libsluice-attach.so.0, which needs libc
alone; sluice.spdx.json, what is linked into it (PEP 770), and notices/, the licences of that. Without a library the wheel is pure
Python, and finds one where the system looks. scripts/wheel makes wheels whose library needs libc alone.

Where the project is, only who publishes it knows: $SLUICE_PROJECT_URL goes into the metadata.
"""
import os
import re
import subprocess

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

NAME, ATTACH, SBOM = "libsluice.so.0", "libsluice-attach.so.0", "sluice.spdx.json"
# e_machine of an ELF file, as in elf.h
MACHINES = {62: "x86_64", 183: "aarch64"}
LIBC = {b"libc.so.6", b"libm.so.6", b"libpthread.so.0", b"libdl.so.2", b"librt.so.1", b"ld-linux-x86-64.so.2", b"ld-linux-aarch64.so.1"}


def platform_tag(library):
    """manylinux_2_34_x86_64: with the oldest libc that has every symbol that the library names (PEP 600); linux_x86_64 of one that needs
    other libraries, which not every such system has."""
    with open(library, "rb") as file:
        data = file.read()
    number = int.from_bytes(data[18:20], "little")
    if number not in MACHINES:
        raise ValueError(f"'{library}' is for machine {number} of ELF: wheels are made for {' and '.join(MACHINES.values())}")
    machine = MACHINES[number]
    needed = [int(minor) for minor in re.findall(rb"\0GLIBC_2\.(\d+)", data)]
    others = set(re.findall(rb"\0(lib[a-z0-9_+-]+(?:-[0-9.]+)?\.so\.[0-9.]+)(?=\0)", data)) - LIBC
    return f"manylinux_2_{max(needed)}_{machine}" if needed and not _foreign(others) else f"linux_{machine}"


def _foreign(names):
    """Libraries of others; what is opened at run time alone (the GPU's driver) and our own name do not count."""
    return {name for name in names if not name.startswith((b"libsluice", b"libcuda"))}


class Addresses(MetadataHookInterface):
    def update(self, metadata):
        address = os.environ.get("SLUICE_PROJECT_URL", "").rstrip("/")
        if address and not re.fullmatch(r"https?://[^\s/]+(/\S*)?", address):
            raise ValueError(f"SLUICE_PROJECT_URL is '{address}': write the address of the project, as in https://…")
        if address:
            metadata["urls"] = {"Homepage": address}


class Hook(BuildHookInterface):
    def library(self):
        given = os.environ.get("SLUICE_LIBRARY")
        if given == "none":
            return None
        if given and not os.path.isfile(given):
            raise FileNotFoundError(f"SLUICE_LIBRARY is '{given}', which is not there")
        built = os.path.join(self.root, os.pardir, "build", "lib", NAME)
        return given or (built if os.path.isfile(built) else self.build(built))

    def build(self, wanted):
        """By the checkout's own script; whoever has none of what it needs is told what brings it."""
        checkout = os.path.abspath(os.path.join(self.root, os.pardir))
        script = os.path.join(checkout, "scripts", "build")
        if not os.path.isfile(script):
            raise FileNotFoundError(f"{NAME} is not here: install a wheel of `scripts/wheel`, or set SLUICE_LIBRARY to a library")
        self.app.display_info(f"building {NAME}: scripts/build, in {checkout}")
        done = subprocess.run([script, "--target", "libsluice_shared", "--target", "libsluice_attach_shared"], capture_output=True, text=True, check=False)
        if done.returncode or not os.path.isfile(wanted):
            raise RuntimeError(f"{NAME} cannot be built here: run `scripts/deps` of a checkout, which installs what that needs, and try again; "
                               f"or set SLUICE_LIBRARY to a library. The last lines were:\n{(done.stdout + done.stderr)[-800:].strip()}")
        return wanted

    def initialize(self, version, build_data):
        if version == "editable":  # a checkout that is used in place is told by $SLUICE_LIBRARY
            return
        path = self.library()
        if not path:
            return
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{platform_tag(path)}"
        build_data["force_include"][os.path.realpath(path)] = f"sluice/{NAME}"
        beside = os.path.dirname(os.path.realpath(path))
        for name in (ATTACH, "notices"):
            if os.path.exists(os.path.join(beside, name)):
                build_data["force_include"][os.path.realpath(os.path.join(beside, name))] = f"sluice/{name}"
        if os.path.isfile(os.path.join(beside, SBOM)):
            build_data["sbom_files"] = [os.path.join(beside, SBOM)]
