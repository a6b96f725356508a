"""Copies of a run's last commit, which later commits do not change (docs/pytorch_runs.md)."""

from __future__ import annotations

import json
import os
import pathlib
import secrets
import shutil
from collections.abc import Callable, Sequence
from tempfile import mkdtemp

from penstock._run import (
    PathLike,
    Run,
    explained,
    path_of,
    read_run,
    sync_folder,
    write_atomically,
)
from penstock.errors import InvalidArgumentError

# Copies the last commit into files that are not there, durably, one for each of the state's.
Copy = Callable[[Sequence[str]], None]


def take_snapshot(run: Run, folder: PathLike, copy: Copy) -> str:
    """Copies the last commit of a run into a folder that is not there; returns its path.

    The folder is a run as any other. ``copy`` is the engine's.
    """
    path = pathlib.Path(path_of(folder, "the folder of the snapshot"))
    if os.path.lexists(path):
        raise InvalidArgumentError(f"penstock: {path} is there already; name another snapshot")
    said = read_run(run.folder)
    beside = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        beside = pathlib.Path(mkdtemp(prefix=f".{path.name}-", suffix=".new", dir=path.parent))
        beside.chmod(run.folder.stat().st_mode & 0o777)
        copy([str(beside / os.path.basename(file)) for file in said["state"]["paths"]])
        paths = [str(path / os.path.basename(file)) for file in said["state"]["paths"]]
        said["state"]["paths"] = paths
        own = {"id": secrets.token_hex(8), "place": str(path), "folders": [str(path)]}
        text = {**said, **own, "named": True}
        write_atomically(beside / "run.json", json.dumps(text, indent=1) + "\n")
        os.rename(beside, path)
        sync_folder(path.parent)
    except OSError as error:
        raise explained(error, f"snapshot {path} cannot be written") from None
    finally:
        if beside is not None:
            shutil.rmtree(beside, ignore_errors=True)
    return str(path)


def files_of(folder: PathLike) -> list[str]:
    """Returns the state files of a snapshot, wherever its folder is now."""
    state = read_run(folder)["state"]
    if not state:
        raise InvalidArgumentError(f"penstock: {folder} has no commit; name another snapshot")
    return [os.path.join(os.fspath(folder), os.path.basename(path)) for path in state["paths"]]
