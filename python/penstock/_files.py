"""Paths that a caller gives, and files that are whole at any moment. Nothing here needs torch."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Sequence
from typing import Union

from penstock.errors import (
    DriveError,
    InvalidArgumentError,
    NotFoundError,
    OutOfSpaceError,
    PathPermissionError,
    PenstockError,
)

PathLike = Union[str, "os.PathLike[str]"]


def path_of(given: PathLike, name: str) -> str:
    """Returns a path absolute and without links; messages call it ``name``."""
    text = os.fspath(given)
    if not isinstance(text, str) or not text:
        raise InvalidArgumentError(f"penstock: {name} is {text!r:.80}, which names no folder")
    try:
        return os.path.realpath(text)
    except (OSError, ValueError) as error:  # a zero byte, or what no file system can be asked for
        raise InvalidArgumentError(
            f"penstock: {name} is {text!r:.80}, which is no path ({error})"
        ) from None


def paths_of(nvme_path: None | PathLike | Sequence[PathLike]) -> list[str]:
    """Returns the folders of ``nvme_path``, absolute and without links; none for None."""
    if nvme_path is None:
        return []
    if isinstance(nvme_path, (str, bytes, os.PathLike)):
        nvme_path = [nvme_path]
    return [path_of(path, "nvme_path") for path in nvme_path]


def explained(error: OSError, what: str) -> PenstockError:
    """Turns an operating system's error into ours, with what was being done."""
    cls: type[PenstockError] = DriveError
    if isinstance(error, FileNotFoundError):
        cls = NotFoundError
    elif isinstance(error, PermissionError):
        cls = PathPermissionError
    elif error.errno == 28:
        cls = OutOfSpaceError
    return cls(f"penstock: {what}: {error.strerror or error}")


def sync_folder(folder: pathlib.Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_atomically(path: pathlib.Path, text: str) -> None:
    """Writes a file that is whole at any moment, whatever ends the process."""
    beside = path.with_name(path.name + ".new")
    with open(beside, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(beside, path)
    sync_folder(path.parent)
