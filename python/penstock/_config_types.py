"""Checks a configuration: values of JSON, with the right types where Python reads them.

The library checks every key that it gets. A wrong value that Python reads before that would
otherwise end in a Python error that names no key.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from penstock.errors import InvalidArgumentError

_MOST_BITS = 1000


class _Kind(NamedTuple):
    """A kind of value: its name for messages, and its test."""

    words: str
    has: Callable[[Any], bool]


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


_OBJECT = _Kind("an object", lambda value: isinstance(value, dict))
_TEXT = _Kind("a text", _is_text)
_NUMBER = _Kind("a number", lambda value: value == "auto" or _is_number(value))
_STEPS = _Kind(
    "a number of steps", lambda value: value == "auto" or (_is_number(value) and value >= 0)
)
_SWITCH = _Kind("true or false", lambda value: value == "auto" or isinstance(value, bool))
_PATHS = _Kind(
    "a folder, or a list of folders",
    lambda value: _is_text(value) or (isinstance(value, list) and all(map(_is_text, value))),
)

_OF_MONITORS = {
    "csv_monitor": ("output_path", "job_name"),
    "tensorboard": ("output_path", "job_name"),
    "wandb": ("project", "group", "team"),
}
_KINDS: Mapping[str, _Kind] = {
    **dict.fromkeys(
        (
            "optimizer",
            "optimizer.params",
            "scheduler",
            "scheduler.params",
            "bf16",
            "bfloat16",
            "fp16",
            "zero_optimization",
            "zero_optimization.offload_optimizer",
            "zero_optimization.offload_param",
            "penstock",
            *_OF_MONITORS,
        ),
        _OBJECT,
    ),
    "optimizer.type": _TEXT,
    "scheduler.type": _TEXT,
    "scheduler.params.total_num_steps": _STEPS,
    "scheduler.params.warmup_num_steps": _STEPS,
    "scheduler.params.warmup_min_lr": _NUMBER,
    "scheduler.params.warmup_max_lr": _NUMBER,
    "scheduler.params.warmup_min_ratio": _NUMBER,
    "scheduler.params.cos_min_ratio": _NUMBER,
    "scheduler.params.warmup_type": _TEXT,
    **{
        f"zero_optimization.{section}.{key}": kind
        for section in ("offload_optimizer", "offload_param")
        for key, kind in (("device", _TEXT), ("nvme_path", _PATHS))
    },
    **{f"{name}.enabled": _SWITCH for name in _OF_MONITORS},
    **{f"{name}.{key}": _TEXT for name, keys in _OF_MONITORS.items() for key in keys},
}


def _refuse(path: str, value: Any, wanted: str) -> InvalidArgumentError:
    shown = f"a number of {value.bit_length()} bits" if _is_huge(value) else f"{value!r:.80}"
    return InvalidArgumentError(f"penstock: config: {path} is {shown}; give {wanted}")


def _plain(value: Any, path: str) -> Any:
    """Returns a value of JSON: a copy with mappings as dicts, and paths as texts."""
    if isinstance(value, Mapping):
        return dict(_members(value, path))
    if isinstance(value, (list, tuple)):
        return [_plain(each, f"{path}[{number}]") for number, each in enumerate(value)]
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if _is_number(value):
        if _is_huge(value) or not math.isfinite(value):
            raise _refuse(path, value, "a finite number")
    elif value is not None and not isinstance(value, (str, bool)):
        raise _refuse(path, value, "a value of JSON: a number, a text, a list, an object")
    return value


def _is_huge(value: Any) -> bool:
    """Whether an integer is too large for any JSON reader; Python refuses to print some of
    these."""
    return isinstance(value, int) and value.bit_length() > _MOST_BITS


def _members(value: Mapping[Any, Any], above: str) -> Iterator[tuple[str, Any]]:
    """Yields the members of an object, each of which is a value of JSON."""
    for key, each in value.items():
        if not isinstance(key, str):
            raise _refuse(f"a key of {above or 'it'}", key, "a text")
        path = f"{above}.{key}" if above else key
        plain = _plain(each, path)
        kind = _KINDS.get(path)
        if kind is not None and plain is not None and not kind.has(plain):
            raise _refuse(path, each, kind.words)
        yield key, plain


def checked(config: Mapping[Any, Any]) -> dict[str, Any]:
    """Returns a copy of a configuration that is made of values of JSON alone.

    Raises:
        InvalidArgumentError: it is not. The line has the key, its value and what is wanted.
    """
    return dict(_members(config, ""))
