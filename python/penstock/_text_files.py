"""Text files of users or other programs: read up to a bound, with one line for an error. A damaged
file may have any size, and must not take the memory to hold it.

Nothing here needs torch.
"""

from __future__ import annotations

import json
import os
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

from penstock.errors import CorruptionError, PenstockError

#: The max bytes of a file that is read as a whole; the program's own bound.
MAX_TEXT = 64 << 20


def read_text(
    path: pathlib.Path | str | os.PathLike[str],
    error: type[PenstockError] = CorruptionError,
    limit: int = MAX_TEXT,
) -> str:
    """Returns the text of a file.

    Raises:
        OSError: it cannot be read.
        error: it is longer than ``limit`` bytes, or is not UTF-8.
    """
    with open(path, "rb") as file:
        found = file.read(limit + 1)
        if len(found) > limit:
            size = os.fstat(file.fileno()).st_size
            raise error(f"penstock: {path} has {size} bytes, and at most {limit} are read")
    try:
        return found.decode("utf-8")
    except UnicodeDecodeError as wrong:
        raise error(f"penstock: {path} is not UTF-8 (from byte {wrong.start} on)") from None


def parse_json(
    text: str, name: str | os.PathLike[str], error: type[PenstockError] = CorruptionError
) -> Any:
    """Returns the value of a JSON text, which messages call ``name``. Raises ``error`` if
    invalid."""
    try:
        return json.loads(text)
    except RecursionError:
        raise error(f"penstock: {name} is nested too deep") from None
    except ValueError as wrong:
        raise error(f"penstock: {name} is not JSON ({wrong})") from None


def is_object(value: Any) -> bool:
    """Whether a value of JSON is an object."""
    return isinstance(value, dict)


def is_text(value: Any) -> bool:
    """Whether a value of JSON is a text and not empty."""
    return isinstance(value, str) and value != ""


def is_path(value: Any) -> bool:
    """Whether a value of JSON is a valid absolute path."""
    try:
        return is_text(value) and os.path.isabs(value) and b"\0" not in value.encode()
    except UnicodeEncodeError:
        return False


def is_count(value: Any) -> bool:
    """Whether a value of JSON is a whole number from 0."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def check_fields(
    said: Any,
    fields: Mapping[str, Callable[[Any], Any]],
    name: str | os.PathLike[str],
    error: type[PenstockError] = CorruptionError,
) -> None:
    """Raises ``error`` unless a value is a mapping with all fields, as penstock writes them.

    Args:
        fields: their checks, by their names.
        name: what messages call the value: a file, or a part of it.
    """
    if not isinstance(said, Mapping):
        raise error(f"penstock: {name} is {said!r:.80}, which is no JSON object")
    for key, check in fields.items():
        if key not in said:
            raise error(f"penstock: {name} has no {key}; it was not written by penstock, or cut")
        if not check(said[key]):
            raise error(
                f"penstock: {name}: {key} is {said[key]!r:.80}, which penstock does not write there"
            )
