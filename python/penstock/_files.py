"""Paths from a caller, and files that are complete at any moment. Nothing here needs torch."""

from __future__ import annotations

import contextlib
import errno
import os
import pathlib
from collections.abc import Iterator, Sequence
from typing import Union

from penstock._text_files import is_path
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
    text = os.fspath(given) if isinstance(given, os.PathLike) else given
    if not isinstance(text, str) or not text:
        raise InvalidArgumentError(f"penstock: {name} is {text!r:.80}; give the path of a folder")
    if not is_path(os.path.abspath(text)):
        raise InvalidArgumentError(
            f"penstock: {name} is {text!r:.80}; give a path in UTF-8, without a zero byte"
        )
    try:
        return os.path.realpath(text)
    except OSError as error:
        raise explained(error, f"{name} {text!r:.80} cannot be looked for") from None


def paths_of(nvme_path: None | PathLike | Sequence[PathLike]) -> list[str]:
    """Returns the folders of ``nvme_path``, absolute and without links; none for None."""
    if nvme_path is None:
        return []
    if not isinstance(nvme_path, (list, tuple)):
        nvme_path = [nvme_path]  # type: ignore[list-item]
    return [path_of(path, "nvme_path") for path in nvme_path]


def snapshot_of(given: PathLike) -> str:
    """Returns where a snapshot goes: a name within its run, or a path, which has a slash."""
    text = os.fspath(given) if isinstance(given, os.PathLike) else given
    if not isinstance(text, str) or not text or not is_path(os.path.abspath(text)):
        raise InvalidArgumentError(
            f"penstock: the snapshot is {text!r:.80}; give a name for it within the run, or a path "
            "that has a slash, in UTF-8 and without a zero byte"
        )
    return text


def explained(error: OSError, what: str) -> PenstockError:
    """Turns an operating system's error into ours; ``what`` says which action failed."""
    cls: type[PenstockError] = DriveError
    if isinstance(error, FileNotFoundError):
        cls = NotFoundError
    elif isinstance(error, PermissionError):
        cls = PathPermissionError
    elif error.errno == errno.ENOSPC:
        cls = OutOfSpaceError
    return cls(f"penstock: {what}: {error.strerror or error}")


@contextlib.contextmanager
def explaining(what: str) -> Iterator[None]:
    """Turns an operating system's error within it into ours."""
    try:
        yield
    except OSError as error:
        raise explained(error, what) from None


def sync_folder(folder: pathlib.Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_atomically(path: pathlib.Path, text: str) -> None:
    """Writes a file that is complete at any moment, even if the process ends."""
    beside = path.with_name(path.name + ".new")
    with open(beside, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(beside, path)
    sync_folder(path.parent)
