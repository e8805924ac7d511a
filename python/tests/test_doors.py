"""Every public name of safetensors, tensorizer and zipslicer, its parameters and its bases, against the doors. What differs stands in a
table of docs/python.md with its reason; a row that is no longer needed is an error, too."""
import ast
import builtins
import enum
import importlib
import inspect
import os
import re
import typing
import unittest

ORIGINALS = {
    "safetensors": ("", "torch", "numpy", "flax", "tensorflow", "mlx", "paddle"),
    "tensorizer": ("", "serialization", "stream_io", "torch_compat", "utils", "protobuf", "tensors_pb2"),
    "zipslicer": ("", "custom_load", "weights_only_unpickler"),
}
DOCS = os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir, os.pardir, "docs", "python.md")
HEADING = "### What the doors lack"
# What makes a class usable in ways that have no public name.
PROTOCOLS = (
    "__call__", "__contains__", "__delitem__", "__enter__", "__eq__", "__exit__", "__getitem__", "__hash__", "__iter__", "__len__",
    "__next__", "__setitem__", "__str__",
)
NOTHING = object()


def known_rows():
    """{name: reason} of the table."""
    with open(DOCS, encoding="utf-8") as file:
        text = file.read().split(HEADING + "\n", 1)[1]
    table = text.split("\n#", 1)[0]
    found = {}
    for names, reason in re.findall(r"^\| (`.+?) \| (.+) \|$", table, re.M):
        for name in re.findall(r"`([^`]+)`", names):
            assert name not in found, f"{name} stands there twice"
            found[name] = reason
    return found


def modules(package):
    """(name, the original's, ours or None) of those that can be imported here."""
    for part in ORIGINALS[package]:
        name = f"{package}.{part}".rstrip(".")
        try:
            theirs = importlib.import_module(name)
        except ImportError:
            continue  # it wants a framework that is not here
        try:
            yield name, theirs, importlib.import_module(f"sluice.{name}")
        except ImportError:
            yield name, theirs, None


def imported(module, package):
    """Names that a module has from elsewhere."""
    found = set()
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        foreign = isinstance(node, ast.ImportFrom) and not node.level and (node.module or "").split(".")[0] != package
        if foreign or isinstance(node, ast.Import):
            found.update((one.asname or one.name).split(".")[0] for one in node.names)
    return found


def public(module, package):
    """Its names: those of __all__, and what it has of the package."""
    listed = set(getattr(module, "__all__", ()))
    found = {name for name in vars(module) if not name.startswith("_")} - imported(module, package)
    for name in sorted(listed | found):
        value = getattr(module, name, NOTHING)
        if name in listed or not inspect.ismodule(value):
            yield name, value


def parameters(function):
    """[(name, kind, default)], None where it does not say them."""
    try:
        found = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return None
    return [(one.name, one.kind, one.default) for one in found if one.name != "self"]


def same(ours, theirs):
    """Of parameters: Rust says ... for each default."""
    return ours is not None and ours[0] == theirs[0] and (theirs[1] is ... or ours[1] == theirs[1])


def differing_parameters(where, ours, theirs):
    """Those that one of them lacks, or has otherwise; order counts."""
    mine, known = parameters(ours), parameters(theirs)
    if mine is None or known is None:
        return
    mine_by, known_by = ({one[0]: one[1:] for one in found} for found in (mine, known))
    differing = [name for name, known_one in known_by.items() if not same(mine_by.get(name), known_one)]
    differing += [name for name in mine_by if name not in known_by]
    for name in differing:
        yield f"{where}({name})"
    if not differing and list(mine_by) != list(known_by):
        yield f"{where}(order)"


def of_package(kind, package):
    """Rust calls its classes builtins."""
    home = kind.__module__.split(".")[0]
    return home == package or (home == "builtins" and not hasattr(builtins, kind.__name__))


def differing_classes(where, ours, theirs, package):
    """Bases that are not the package's own, and members."""
    if not isinstance(ours, type):
        yield f"{where} is a class"
        return
    for base in theirs.__mro__[1:]:
        if base not in (object, typing.Generic) and not of_package(base, package) and not issubclass(ours, base):
            yield f"{where} is a {base.__name__}"
    yield from differing_parameters(where, ours, theirs)
    own = [each for each in theirs.__mro__ if of_package(each, package)]
    members = {name for each in own for name in (*vars(each), *vars(each).get("__annotations__", ()))}
    for name in sorted(members):
        if name.startswith("_") and name not in PROTOCOLS:
            continue
        mine = getattr(ours, name, NOTHING if name not in getattr(ours, "__annotations__", ()) else None)
        yield from differing_values(f"{where}.{name}", mine, getattr(theirs, name, None), package)


def differing_values(where, ours, theirs, package):
    """What one name is."""
    if ours is NOTHING:
        yield where
        return
    if isinstance(theirs, type) and of_package(theirs, package):
        where = f"{theirs.__module__}.{theirs.__name__}".replace("builtins", package)  # it has several names
    if isinstance(theirs, type):
        yield from differing_classes(where, ours, theirs, package)
    elif isinstance(theirs, enum.Enum):
        if ours != theirs:
            yield f"{where} is {theirs!r}"
    elif callable(theirs):
        if not callable(ours):
            yield f"{where} is callable"
        elif not where.endswith("__"):  # operators name no parameters
            yield from differing_parameters(where, ours, theirs)


def differences(package):
    """Names of what differs: "a.b.Class.method", "a.b.function(parameter)"."""
    for name, theirs, ours in modules(package):
        if ours is None:
            yield name
            continue
        for each, value in public(theirs, package):
            yield from differing_values(f"{name}.{each}", getattr(ours, each, NOTHING), value, package)


def covers(row, difference):
    """A row that ends with () is of all parameters."""
    return difference == row or (row.endswith("()") and difference.startswith(row[:-1]))


class Doors(unittest.TestCase):
    def check(self, package):
        rows = {row: reason for row, reason in known_rows().items() if row.split(".")[0] == package}
        found = sorted(set(differences(package)))
        self.assertEqual([one for one in found if not any(covers(row, one) for row in rows)], [], f"neither there nor in {HEADING!r}")
        self.assertEqual([row for row in rows if not any(covers(row, one) for one in found)], [], "rows that are no longer needed")

    def test_safetensors_is_whole(self):
        self.check("safetensors")

    def test_tensorizer_is_whole(self):
        self.check("tensorizer")

    def test_zipslicer_is_whole(self):
        self.check("zipslicer")


if __name__ == "__main__":
    unittest.main()
