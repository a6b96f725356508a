"""Checkpoints of DeepSpeed's interface: ``DIR/latest``, and in ``DIR/TAG`` a snapshot and a text.

``penstock.json`` says what is beside the states: the optimizer's state_dict, the scheduler's, counts
and the client's state, as commits say such things (docs/pytorch_runs.md).
"""

from __future__ import annotations

import json
import pathlib
import shutil
from typing import Any

from penstock import _state
from penstock._module_optimizer import ModuleOptimizer
from penstock._run import write_atomically
from penstock.errors import CorruptionError, InvalidArgumentError

_TEXT = "penstock.json"
_SNAPSHOT = "penstock"


def write_checkpoint(
    folder: pathlib.Path, tag: str, optimizer: ModuleOptimizer, said: dict[str, Any], latest: bool
) -> None:
    """Writes a checkpoint, in the place of one of the same name."""
    text = {name: _state.encode(value, name) for name, value in said.items()}
    place = folder / tag
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    saved = optimizer.state_dict()
    optimizer.snapshot(place / _SNAPSHOT)
    text["optimizer"] = _state.encode(saved, "optimizer")
    text["random"] = _state.encode(_state.random_states(), "random")
    write_atomically(place / _TEXT, json.dumps(text) + "\n")
    if latest:
        write_atomically(folder / "latest", tag)


def read_checkpoint(
    folder: pathlib.Path, tag: str | int | None
) -> tuple[pathlib.Path, dict[str, Any]] | None:
    """Returns path and text of a checkpoint, and sets the random generators; None: there is none."""
    latest = folder / "latest"
    if tag is None:
        if not latest.is_file():
            return None
        tag = latest.read_text(encoding="utf-8").strip()
    place = folder / str(tag)
    if not (place / _TEXT).is_file():
        raise InvalidArgumentError(
            f"penstock: {place} is no checkpoint of penstock; states of DeepSpeed come in as a "
            "universal checkpoint (penstock.universal)"
        )
    try:
        text = json.loads((place / _TEXT).read_text(encoding="utf-8"))
    except ValueError as error:
        raise CorruptionError(f"penstock: {place / _TEXT} is not JSON ({error})") from None
    said: dict[str, Any] = {name: _state.decode(value) for name, value in text.items()}
    said["optimizer"]["penstock"]["snapshot"] = str(place / _SNAPSHOT)
    _state.restore_random(said.pop("random"))
    return place, said
