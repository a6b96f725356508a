"""The folders of a day: one to work in, and one on a drive that has O_DIRECT.

As a program: prints the folder of the arguments that has O_DIRECT; exit code 1 if none has.
"""

from __future__ import annotations

import dataclasses
import mmap
import os
import pathlib
import shutil
import sys
import tempfile
from collections.abc import Iterable

_IN_MEMORY = ("tmpfs", "ramfs", "devtmpfs")
_ROOM = 12 << 30  # bytes that states of the largest part on a drive take
_NAME = "penstock-gpu-day"


@dataclasses.dataclass(frozen=True)
class Places:
    """Folders of a day; `drive` is None where no folder has O_DIRECT."""

    work: pathlib.Path
    drive: pathlib.Path | None
    notes: tuple[str, ...]

    @property
    def logs(self) -> pathlib.Path:
        return self.work / "logs"


def refusal(folder: pathlib.Path) -> str | None:
    """Why files of a folder cannot be read and written with O_DIRECT; None where they can."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix="direct-") as name:
            path = os.path.join(name, "probe")
            file = os.open(path, os.O_CREAT | os.O_RDWR | os.O_DIRECT, 0o600)
            try:
                with mmap.mmap(-1, 4096) as page:
                    page[:] = b"\x5a" * 4096
                    if os.pwritev(file, [page], 0) != 4096 or os.preadv(file, [page], 0) != 4096:
                        return "short read or write with O_DIRECT"
            finally:
                os.close(file)
    except OSError as error:
        return error.strerror or str(error)
    return None


def file_system(folder: pathlib.Path) -> str:
    """The type of the file system of a folder, or "" where the system does not say."""
    found, longest = "", -1
    try:
        lines = pathlib.Path("/proc/self/mounts").read_text(errors="replace").splitlines()
    except OSError:
        return ""
    real = os.path.realpath(folder)
    for line in lines:
        _, mount, kind, *_ = line.split()
        inside = real == mount or real.startswith(mount.rstrip("/") + "/")
        if inside and len(mount) >= longest:
            found, longest = kind, len(mount)
    return found


def best(candidates: Iterable[pathlib.Path]) -> tuple[pathlib.Path | None, list[str]]:
    """Returns the first folder on a drive with O_DIRECT and enough room, else the one with most
    room, else one in memory with O_DIRECT; and a line for each that was looked at."""
    found: list[tuple[int, int, int, pathlib.Path]] = []
    notes = []
    for number, folder in enumerate(candidates):
        why = refusal(folder)
        if why is not None:
            notes.append(f"O_DIRECT in {folder}: {why}")
            continue
        kind = file_system(folder)
        free = shutil.disk_usage(folder).free
        notes.append(f"O_DIRECT in {folder}: works, {kind}, {free / 2**30:.1f} GiB free")
        memory = kind in _IN_MEMORY
        found.append((-int(memory), min(free, _ROOM), -number, folder))
    return (max(found)[-1] if found else None), notes


def _candidates(kit: pathlib.Path) -> list[pathlib.Path]:
    parents = [kit, "/tmp", "/var/tmp", pathlib.Path.cwd(), pathlib.Path.home(), "/dev/shm"]
    return [pathlib.Path(parent) / _NAME for parent in parents]


def _writable(folders: Iterable[pathlib.Path]) -> pathlib.Path:
    for folder in folders:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder):
                return folder
        except OSError:
            continue
    return pathlib.Path(tempfile.mkdtemp(prefix=_NAME))


def choose(work: str | None, kit: pathlib.Path) -> Places:
    """Returns the folders of a day. `work`: where the user wants logs and runs; the drive is the
    same folder if it has O_DIRECT, and else another one, or none."""
    if work is not None:
        given = pathlib.Path(work).absolute()
        given.mkdir(parents=True, exist_ok=True)
        if refusal(given) is None:
            drive, notes = best([given])
        else:
            drive, notes = best([given, *_candidates(kit)])
        return Places(given, drive, tuple(notes))
    candidates = _candidates(kit)
    drive, notes = best(candidates)
    return Places(drive or _writable(candidates), drive, tuple(notes))


if __name__ == "__main__":
    folder, lines = best(pathlib.Path(name).absolute() for name in sys.argv[1:])
    print(folder if folder is not None else "; ".join(lines))
    sys.exit(0 if folder is not None else 1)
