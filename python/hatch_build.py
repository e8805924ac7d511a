"""The wheel carries libsluice where a build of it is at hand, and is a wheel of this machine's kind then.

Looked for: $SLUICE_LIBRARY, then build/lib/ of the checkout. Without one the wheel is pure Python, and finds the library where
the system looks.
"""
import os
import sysconfig

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

NAME = "libsluice.so.0"


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
        build_data["tag"] = "py3-none-" + sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["force_include"][os.path.realpath(path)] = f"sluice/{NAME}"
