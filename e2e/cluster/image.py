#!/usr/bin/env python3
"""Make an image archive of a directory, without an engine: what `docker save` would write.

    image.py ROOT ARCHIVE NAME:TAG [--entrypoint WORD …] [--user UID] [--env NAME=VALUE …]

One layer. The same files give the same bytes: names sorted, no times, everything owned by root.
"""
import argparse
import hashlib
import io
import json
import os
import tarfile


def plain(entry):
    """Without what differs between two checkouts; the root must be searchable for every uid."""
    entry.uid = entry.gid = entry.mtime = 0
    entry.uname = entry.gname = ""
    if entry.isdir():
        entry.mode = 0o1777 if os.path.basename(entry.name) == "tmp" else 0o755
    return entry


def write_layer(root, path):
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as layer:
        for folder, folders, files in os.walk(root):
            folders.sort()
            for name in sorted(files + [name for name in folders]):
                full = os.path.join(folder, name)
                layer.add(full, os.path.relpath(full, root), recursive=False, filter=plain)


def sha256(path):
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def add_bytes(archive, name, data):
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(data), 0o644
    archive.addfile(entry, io.BytesIO(data))


def make(root, archive_path, name, entrypoint=(), user="", env=()):
    layer = archive_path + ".layer"
    write_layer(root, layer)
    config = {"architecture": "amd64", "os": "linux", "created": "1970-01-01T00:00:00Z",
              "config": {"Entrypoint": list(entrypoint), "User": str(user), "Env": list(env)},
              "rootfs": {"type": "layers", "diff_ids": ["sha256:" + sha256(layer)]}, "history": [{"created_by": "image.py"}]}
    manifest = [{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}]
    with tarfile.open(archive_path + ".part", "w") as archive:
        add_bytes(archive, "manifest.json", json.dumps(manifest).encode())
        add_bytes(archive, "config.json", json.dumps(config).encode())
        archive.add(layer, "layer.tar", filter=plain)
    os.unlink(layer)
    os.rename(archive_path + ".part", archive_path)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("root")
    parser.add_argument("archive")
    parser.add_argument("name")
    parser.add_argument("--entrypoint", nargs="*", default=[])
    parser.add_argument("--user", default="")
    parser.add_argument("--env", nargs="*", default=[])
    a = parser.parse_args()
    make(a.root, a.archive, a.name, a.entrypoint, a.user, a.env)


if __name__ == "__main__":
    main()
