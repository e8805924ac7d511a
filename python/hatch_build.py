"""The wheel carries libsluice where a build of it is at hand, and is a wheel of this machine's kind then.

Looked for: $SLUICE_LIBRARY, then build/lib/ of the checkout; libsluice-attach.so.0, which needs libc alone, comes with it if it lies
beside it. Without one the wheel is pure Python, and finds the library where the system looks.
"""
import os
import re
import sysconfig

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

NAME, ATTACH = "libsluice.so.0", "libsluice-attach.so.0"
LIBC = {b"libc.so.6", b"libm.so.6", b"libpthread.so.0", b"libdl.so.2", b"librt.so.1", b"ld-linux-x86-64.so.2", b"ld-linux-aarch64.so.1"}


def platform_tag(library):
    """manylinux_2_34_x86_64: with the oldest libc that has every symbol that the library names (PEP 600); linux_x86_64 of one that needs
    other libraries, which not every such system has."""
    machine = sysconfig.get_platform().split("-", 1)[1].replace("-", "_").replace(".", "_")
    with open(library, "rb") as file:
        data = file.read()
    needed = [int(minor) for minor in re.findall(rb"\0GLIBC_2\.(\d+)", data)]
    others = set(re.findall(rb"\0(lib[a-z0-9_+-]+(?:-[0-9.]+)?\.so\.[0-9.]+)(?=\0)", data)) - LIBC
    return f"manylinux_2_{max(needed)}_{machine}" if needed and not _foreign(others) else f"linux_{machine}"


def _foreign(names):
    """Libraries of others; what is opened at run time alone (the GPU's driver) and our own name do not count."""
    return {name for name in names if not name.startswith((b"libsluice", b"libcuda"))}


class Hook(BuildHookInterface):
    def library(self):
        given = os.environ.get("SLUICE_LIBRARY")
        if given and not os.path.isfile(given):
            raise FileNotFoundError(f"SLUICE_LIBRARY is '{given}', which is not there")
        built = os.path.join(self.root, os.pardir, "build", "lib", NAME)
        return given or (built if os.path.isfile(built) else None)

    def initialize(self, version, build_data):
        if version == "editable":  # a checkout that is used in place is told by $SLUICE_LIBRARY
            return
        path = self.library()
        if not path:
            self.app.display_warning(f"no {NAME}: build sluice before, or set SLUICE_LIBRARY; the wheel is without it")
            return
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{platform_tag(path)}"
        build_data["force_include"][os.path.realpath(path)] = f"sluice/{NAME}"
        attach = os.path.join(os.path.dirname(os.path.realpath(path)), ATTACH)
        if os.path.isfile(attach):
            build_data["force_include"][os.path.realpath(attach)] = f"sluice/{ATTACH}"
