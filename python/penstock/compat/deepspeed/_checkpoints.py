"""Checkpoints of DeepSpeed's interface: ``DIR/latest``, and in ``DIR/TAG`` a snapshot and a text.

``penstock.json`` holds everything besides the states: the optimizer's state_dict, the scheduler's,
counts and the client's state, in the form of commits (docs/pytorch_runs.md).
"""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import tempfile
from typing import Any

from penstock import _state
from penstock._files import explaining, sync_folder, write_atomically
from penstock._module_optimizer import ModuleOptimizer
from penstock._text_files import check_fields, is_count, is_object, parse_json, read_text
from penstock.errors import CorruptionError, InvalidArgumentError

_TEXT = "penstock.json"
_SNAPSHOT = "penstock"
_FIELDS = {
    "optimizer": is_object,
    "random": is_object,
    "counts": lambda value: isinstance(value, list) and [*map(is_count, value)] == [True] * 3,
    "client_state": is_object,
    "lr_scheduler": lambda value: value is None or is_object(value),
}


def write_checkpoint(
    folder: pathlib.Path, tag: str, optimizer: ModuleOptimizer, said: dict[str, Any], latest: bool
) -> None:
    """Writes a checkpoint, which replaces one of the same name.

    It is written beside the old one, which is removed only when the new one is complete.
    """
    if tag in ("", ".", "..") or "/" in tag or "\0" in tag:
        raise InvalidArgumentError(
            f"penstock: save_checkpoint got the tag {tag!r}; give the plain name of a folder"
        )
    place = folder / tag
    with explaining(f"checkpoint {place} cannot be written"):
        if os.path.lexists(place) and not (place / _TEXT).is_file():
            raise InvalidArgumentError(
                f"penstock: {place} is there and is no checkpoint of penstock; give another tag"
            )
        text = {name: _state.encode(value, name) for name, value in said.items()}
        folder.mkdir(parents=True, exist_ok=True)
        beside = pathlib.Path(tempfile.mkdtemp(prefix=f".{tag}-", suffix=".new", dir=folder))
        try:
            beside.chmod(folder.stat().st_mode & 0o777)
            _write_beside(beside, optimizer, text)
            _put(beside, place)
        finally:
            shutil.rmtree(beside, ignore_errors=True)
        if latest:
            write_atomically(folder / "latest", tag)


def _write_beside(beside: pathlib.Path, optimizer: ModuleOptimizer, text: dict[str, Any]) -> None:
    """Writes the contents of a checkpoint's folder."""
    saved = optimizer.state_dict()
    optimizer.snapshot(beside / _SNAPSHOT)
    text["optimizer"] = _state.encode(saved, "optimizer")
    text["random"] = _state.encode(_state.random_states(), "random")
    write_atomically(beside / _TEXT, json.dumps(text) + "\n")


def _put(beside: pathlib.Path, place: pathlib.Path) -> None:
    """Renames a complete checkpoint to its place, and removes the old one."""
    old = None
    if place.exists():
        old = tempfile.mkdtemp(prefix=f".{place.name}-", suffix=".old", dir=place.parent)
        os.rename(place, old)
    os.rename(beside, place)
    if old is not None:
        shutil.rmtree(old, ignore_errors=True)
    sync_folder(place.parent)


def read_checkpoint(
    folder: pathlib.Path, tag: str | int | None
) -> tuple[pathlib.Path, dict[str, Any]] | None:
    """Returns path and text of a checkpoint, and sets the random generators; None: there is none."""
    with explaining(f"checkpoint {tag or 'latest'} in {folder} cannot be read"):
        latest = folder / "latest"
        if tag is None:
            if not latest.is_file():
                return None
            tag = read_text(latest).strip()
        place = folder / str(tag)
        if not (place / _TEXT).is_file():
            raise InvalidArgumentError(
                f"penstock: {place} is no checkpoint of penstock; states of DeepSpeed come in as a "
                "universal checkpoint (penstock.universal)"
            )
        text = parse_json(read_text(place / _TEXT), place / _TEXT)
    check_fields(text, _FIELDS, place / _TEXT)
    try:
        said: dict[str, Any] = {name: _state.decode(value) for name, value in text.items()}
        check_fields(said["optimizer"], {"penstock": is_object}, "optimizer")
    except CorruptionError as error:
        raise CorruptionError(f"penstock: {place / _TEXT}: {error}") from None
    said["optimizer"]["penstock"]["snapshot"] = str(place / _SNAPSHOT)
    _state.restore_random(said.pop("random"))
    return place, said
