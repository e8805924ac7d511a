"""libsluice as others build against it: installed, then found by pkg-config and by CMake."""
import json
import os
import re
import shutil
import struct
import subprocess

from harness import ROOT, check

ROOMS = ("client/api", "lib/open", "packaging")
SOURCE = """#include <sluice.h>
#include <stdio.h>
int main(void)
{
    struct sluice_error error;
    struct sluice_model *model;
    const struct sluice_attach_options options = {.size = sizeof(options), .model = "m", .socket = "/nowhere/pool.sock"};
    return sluice_attach(&options, &model, &error) == -1 && error.kind == SLUICE_NETWORK ? puts(sluice_version()) < 0 : 1;
}
"""
# C++ has one name for a struct and a function, so that two structs have another beside.
IN_CPP = """#include <sluice.h>
#include <sluice_edit.h>
int main()
{
    sluice_open_options options = {};
    sluice_read_t read = {};
    sluice_dlpack_t lent = {};
    sluice_source *source;
    sluice_error error;
    options.size = read.size = lent.size = sizeof(options);
    return sluice_open("", &options, &source, &error) == -1 && error.kind == SLUICE_USAGE ? 0 : 1;
}
"""
PROJECT = """cmake_minimum_required(VERSION 3.22)
project(user LANGUAGES C)
find_package(sluice REQUIRED)
foreach(kind shared attach_shared attach_static)
    add_executable(${kind} user.c)
    target_link_libraries(${kind} PRIVATE sluice::${kind})
endforeach()
"""


def run(*words, **named):
    done = subprocess.run(words, capture_output=True, text=True, **named)
    assert done.returncode == 0, f"{' '.join(words)}: {done.stdout[-400:]}{done.stderr[-800:]}"
    return done.stdout.strip()


def install(h):
    """Where the build's files are installed: moved there after it was configured."""
    prefix, build = h.directory("prefix"), os.path.dirname(h.program)
    run("cmake", "--install", build, "--prefix", prefix)
    return prefix


def found_below(prefix, name):
    places = [os.path.join(folder, name) for folder, _, files in os.walk(prefix) if name in files]
    assert len(places) == 1, f"{name}: {places}"
    return places[0]


@check()
def the_library_is_found_by_those_who_build_against_it(h):
    """cmake --install, then pkg-config and find_package(sluice) build a program with each of the libraries."""
    prefix, place = install(h), h.directory("user")
    with open(os.path.join(place, "user.c"), "w") as file:
        file.write(SOURCE)
    with open(os.path.join(place, "CMakeLists.txt"), "w") as file:
        file.write(PROJECT)
    config = os.path.dirname(found_below(prefix, "sluice.pc"))
    env = {**os.environ, "PKG_CONFIG_PATH": config}
    flags = run("pkg-config", "--cflags", "--libs", "sluice", env=env).split()
    version = run("pkg-config", "--modversion", "sluice", env=env)
    program = os.path.join(place, "by-pkg-config")
    run("cc", os.path.join(place, "user.c"), "-o", program, *flags)
    library = os.path.dirname(found_below(prefix, "libsluice.so"))
    assert run(program, env={**os.environ, "LD_LIBRARY_PATH": library}) == version
    run("cmake", "-S", place, "-B", place + "/build", f"-DCMAKE_PREFIX_PATH={prefix}")
    run("cmake", "--build", place + "/build")
    for kind in ("shared", "attach_shared", "attach_static"):
        assert run(os.path.join(place, "build", kind)) == version, kind
    return f"version {version}, pkg-config and CMake"


@check(smoke=True)
def a_program_opens_a_model_with_the_library(h):
    """docs/library.md's example, as it stands there, built by pkg-config, reads a tensor of a file that has just been made."""
    prefix, place = install(h), h.directory("user")
    with open(os.path.join(ROOT, "docs", "library.md"), encoding="utf-8") as page:
        example = re.search(r"```c\n(.*?)```", page.read(), re.DOTALL)[1]
    with open(os.path.join(place, "example.c"), "w", encoding="utf-8") as file:
        file.write(example)
    model = os.path.join(place, "m.safetensors")
    head = json.dumps({"w": {"dtype": "BF16", "shape": [2], "data_offsets": [0, 4]}}).encode()
    with open(model, "wb") as file:
        file.write(struct.pack("<Q", len(head)) + head + bytes(4))
    env = {**os.environ, "PKG_CONFIG_PATH": os.path.dirname(found_below(prefix, "sluice.pc"))}
    flags = run("pkg-config", "--cflags", "--libs", "sluice", env=env).split()
    program = os.path.join(place, "example")
    run("cc", "-Wall", "-Wextra", "-Werror", os.path.join(place, "example.c"), "-o", program, *flags)
    env = {**os.environ, "LD_LIBRARY_PATH": os.path.dirname(found_below(prefix, "libsluice.so"))}
    assert run(program, model, "w", env=env) == "BF16"
    missing = subprocess.run([program, model, "v"], capture_output=True, text=True, env=env)
    assert missing.returncode == 1 and "no tensor 'v'" in missing.stderr, missing.stderr
    if not shutil.which("c++"):
        return "BF16 read; no C++ compiler"
    with open(os.path.join(place, "user.cpp"), "w") as file:
        file.write(IN_CPP)
    run("c++", "-std=c++11", "-Wall", "-Wextra", "-Werror", os.path.join(place, "user.cpp"), "-o", program, *flags)
    run(program, env=env)
    return "BF16 read; the header is C++, too"
