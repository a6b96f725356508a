"""Runs that commit 3077072 has made, packed, with what it computed from them afterwards (make_runs.py).

A run names its files by absolute paths. In an archive "@ROOT@" stands for the folder above it, in the
place of which unpack() writes where the run is now. Standard library only.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import pathlib
import tarfile
from typing import Any

FOLDER = pathlib.Path(__file__).resolve().parent
ROOT = b"@ROOT@"
TRAIN = ("train-memory", "train-nvme", "train-paths", "train-ranks")
PACKAGE = tuple(
    f"{kind}-{place}"
    for kind in ("optimizer", "module")
    for place in ("run", "nvme", "paths", "unnamed")
)
# What trainings were told when they went on behind the snapshot "kept".
BEHIND_KEPT = {
    "train-memory": ["--change", "optimizer.params.lr=0.02"],
    "train-nvme": ["--skip-steps", "3:3"],
}


def replaced(path: str, old: bytes, new: bytes) -> bytes:
    """A file's content; in texts one folder's name takes the place of another's."""
    content = pathlib.Path(path).read_bytes()
    return content if path.endswith(".state") else content.replace(old, new)


def training(root: str) -> list[str]:
    """How the runs of penstock train are made and resumed, but for the number of steps."""
    files = {"--model": "model", "--config": "config.json", "--data": "data.txt", "--out": "run"}
    named = [word for key, name in files.items() for word in (key, os.path.join(root, name))]
    return ["train", *named, "--sequence-length", "8", "--device", "cpu"]


def set_rate(root: str, rate: float) -> None:
    """Writes the learning rate into the config."""
    path = pathlib.Path(root, "config.json")
    config = json.loads(path.read_text())
    config["optimizer"]["params"]["lr"] = rate
    path.write_text(json.dumps(config, indent=1))


def pack(packed: str, name: str, recorded: dict[str, Any], root: str) -> None:
    """Writes the archive of a folder that is a copy of root, and what was recorded of it."""

    def without_owner(member: tarfile.TarInfo) -> tarfile.TarInfo:
        member.uid = member.gid = member.mtime = 0
        member.uname = member.gname = ""
        return member

    pathlib.Path(packed, "recorded.json").write_text(json.dumps(recorded, indent=1))
    with tarfile.open(FOLDER / f"{name}.tar.xz", "w:xz", preset=9) as archive:
        for parent, folders, files in os.walk(packed):
            folders.sort()
            for entry in (*folders, *sorted(files)):
                path = os.path.join(parent, entry)
                member = without_owner(archive.gettarinfo(path, os.path.relpath(path, packed)))
                if member.isdir():
                    archive.addfile(member)
                    continue
                content = replaced(path, root.encode(), ROOT)
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))


def unpack(name: str, folder: str | os.PathLike[str]) -> dict[str, Any]:
    """Makes a folder with a run as its user would have it; returns what was recorded of it."""
    root = os.path.realpath(folder)
    os.makedirs(root)
    with tarfile.open(FOLDER / f"{name}.tar.xz") as archive:
        for member in archive:
            path = os.path.join(root, member.name)
            file = archive.extractfile(member)
            if file is None:
                os.mkdir(path)
                continue
            content = file.read()
            with open(path, "wb") as made:
                made.write(content)
            if not path.endswith(".state"):
                pathlib.Path(path).write_bytes(replaced(path, ROOT, root.encode()))
    recorded: dict[str, Any] = json.loads(pathlib.Path(root, "recorded.json").read_text())
    return recorded


def package_run(root: str) -> str:
    """The run of an unpacked archive of the package, which its caller may not have named."""
    saved = json.loads(pathlib.Path(root, "state_dict.json").read_text())
    run: str = saved["penstock"]["run"]
    return run


def digests(safetensors: str | os.PathLike[str]) -> dict[str, str]:
    """SHA-256 of each tensor of a file."""
    content = pathlib.Path(safetensors).read_bytes()
    begin = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:begin])
    header.pop("__metadata__", None)
    return {
        name: hashlib.sha256(content[begin:][slice(*entry["data_offsets"])]).hexdigest()
        for name, entry in sorted(header.items())
    }


def numbers(rows: str | os.PathLike[str]) -> list[list[Any]]:
    """What a training computed in each step, exactly: from its metrics.jsonl."""
    keys = ("loss", "grad_norm", "lr")
    return [
        [row["step"], *(float(row[key]).hex() for key in keys), row["skipped"]]
        for row in map(json.loads, pathlib.Path(rows).read_text().splitlines())
    ]
