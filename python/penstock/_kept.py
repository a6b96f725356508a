"""Commits that are kept beside the run's last one (docs/pytorch_runs.md, "Kept commits").

A state file has its last commit only. A trainer goes back to any of its checkpoints, so the commit
of each is copied, and named by the checkpoint's folder: its owner.
"""

from __future__ import annotations

import json
import os
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from penstock import _library
from penstock._run import PathLike, Run, write_atomically
from penstock.errors import InvalidArgumentError

_OWNER = ".json"  # beside the file of path 0


def kept_paths(state_paths: Sequence[str], step: int) -> list[str]:
    """Returns where the files of a commit are kept, if it is."""
    return [
        os.path.join(os.path.dirname(path), f"kept-{step}", os.path.basename(path))
        for path in state_paths
    ]


def keep(engine: _library.Engine, state_paths: Sequence[str], step: int, owner: PathLike) -> None:
    """Copies the last commit, which is of ``step``; does nothing if that is kept already."""
    paths = kept_paths(state_paths, step)
    note = pathlib.Path(paths[0] + _OWNER)
    if note.exists():
        return
    for path in paths:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        if os.path.exists(path):  # a process ended before it was noted
            os.unlink(path)
    engine.copy_commit(paths)
    said = {"owner": os.path.abspath(os.fspath(owner)), "paths": paths}
    write_atomically(note, json.dumps(said) + "\n")


def _notes(state_paths: Sequence[str]) -> Iterator[tuple[pathlib.Path, dict[str, Any]]]:
    """Yields what is kept beside a state, of whatever state it is."""
    folder = pathlib.Path(state_paths[0]).parent
    for note in sorted(folder.glob(f"kept-*/*{_OWNER}")):
        yield note, json.loads(note.read_text(encoding="utf-8"))


def let_go(state_paths: Sequence[str], folder: PathLike) -> None:
    """Removes what is kept for owners within ``folder`` that are gone."""
    root = os.path.abspath(os.fspath(folder))
    for note, said in _notes(state_paths):
        owner = said["owner"]
        if os.path.dirname(owner) != root or os.path.isdir(owner):
            continue
        note.unlink()
        for path in said["paths"]:
            pathlib.Path(path).unlink(missing_ok=True)
            try:
                os.rmdir(os.path.dirname(path))
            except OSError:
                pass  # another commit of the same step is in it


def engine_at(
    run: Run, commit: Mapping[str, Any] | None, make: Callable[[Sequence[str]], _library.Engine]
) -> _library.Engine:
    """Makes an engine that continues a commit: the run's last one, or one that was kept.

    Args:
        run: the run, opened.
        commit: what a ``state_dict()`` says of it; None: the last one, if there is any.
        make: makes the engine from the files that it continues.

    Raises:
        InvalidArgumentError: it is neither the last one nor kept.
    """
    if commit is None:
        return make(run.continued)
    step = None
    if run.uuid == commit["uuid"]:
        engine = make(run.continued)
        step = engine.describe()["step"]
        if step == commit["step"]:
            return engine
        engine.close()
    kept = kept_paths(commit["state_paths"], commit["step"])
    if all(os.path.exists(path) for path in kept):
        run.go_back(kept)
        return make(kept)
    if step is None:
        raise InvalidArgumentError(
            f"penstock: run {run.folder} has the state {run.uuid}, and {commit['uuid']} was saved; "
            "the state_dict is older than the state, or of another run"
        )
    raise InvalidArgumentError(
        f"penstock: the last commit of run {run.folder} is of step {step}, and step "
        f"{commit['step']} was saved and not kept; only the last commit can be continued, and those "
        "that were kept"
    )
