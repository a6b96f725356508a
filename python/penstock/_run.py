"""A run: the folder that says which state files belong to one training (docs/pytorch_runs.md).

A :class:`Run` is opened once, holds the folder's lock, and belongs to the process that opened it.
Nothing here needs torch.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import pathlib
import secrets
import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Union

from penstock._text_files import check_fields, is_object, is_path, is_text, parse_json, read_text
from penstock.errors import (
    CorruptionError,
    DriveError,
    InvalidArgumentError,
    NotFoundError,
    OutOfSpaceError,
    PathPermissionError,
    PenstockError,
    UnavailableError,
)

VERSION = 1
OWNER = "run.name"  # beside state files: which run folder they belong to
# What run.json has beside its version, and what its state has.
_RUN = {
    "id": lambda value: is_text(value) and value.isalnum(),
    "kind": is_text,
    "named": lambda value: isinstance(value, bool),
    "place": is_path,
    "folders": lambda value: isinstance(value, list) and all(map(is_path, value)),
    "state": lambda value: value is None or is_object(value),
}
_STATE = {
    "uuid": is_text,
    "paths": lambda value: isinstance(value, list) and value and all(map(is_path, value)),
}
PathLike = Union[str, "os.PathLike[str]"]

_open_folders: set[str] = set()
_registry = threading.Lock()


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


def explained(error: OSError, what: str) -> PenstockError:
    """Turns an operating system's error into ours, with what was being done."""
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
    """Writes a file that is whole at any moment, whatever ends the process."""
    beside = path.with_name(path.name + ".new")
    with open(beside, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(beside, path)
    sync_folder(path.parent)


def read_run(folder: PathLike) -> dict[str, Any]:
    """Returns what run.json of a folder says.

    Raises:
        NotFoundError: there is none.
        CorruptionError: it is not a run.json of this version.
        InvalidArgumentError: it is a run of ``penstock train``.
    """
    path = pathlib.Path(folder) / "run.json"
    try:
        text = read_text(path)
    except OSError as error:
        raise explained(error, f"{path} cannot be read") from None
    said = parse_json(text, path)
    if isinstance(said, dict) and "penstock_run" not in said and "version" in said:
        raise InvalidArgumentError(
            f"penstock: {folder} is a run of penstock train, which resumes it with --resume; name "
            "another folder"
        )
    if not isinstance(said, dict) or said.get("penstock_run") != VERSION:
        raise CorruptionError(
            f"penstock: {path} is no run of version {VERSION}; use the release that wrote it"
        )
    check_fields(said, _RUN, path)
    if said["state"] is not None:
        check_fields(said["state"], _STATE, f"{path}: state")
    return said


def _check_places(folder: PathLike | None, nvme: Sequence[str]) -> None:
    """Raises if there is no place for state files."""
    for root in nvme:
        if not os.path.isdir(root):
            raise NotFoundError(f"penstock: nvme_path {root} is no folder; make it first")
    if folder is None and not nvme:
        raise InvalidArgumentError(
            "penstock: neither run nor nvme_path is given, so there is no place for the state "
            "file; give nvme_path=, a folder on a drive, or run=, a folder for this training"
        )


def _check_not_foreign(path: pathlib.Path) -> None:
    """Raises if a folder has state files and no run, so that they are somebody else's."""
    foreign = next(path.glob("penstock-*.state"), None)
    if foreign is not None and not (path / "run.json").exists():
        raise InvalidArgumentError(
            f"penstock: {path} has {foreign.name} and no run.json, so it is no run; name another "
            "folder"
        )


def _check_no_orphan(path: pathlib.Path, nvme: Sequence[str]) -> None:
    """Raises if there are states of a run whose folder was ``path``, where now there is none."""
    states: list[pathlib.Path] = []
    for root in nvme if not (path / "run.json").exists() else ():
        for owner in sorted(pathlib.Path(root).glob(f"penstock-*/{OWNER}")):
            try:
                said = parse_json(read_text(owner), owner)
            except (OSError, CorruptionError):
                continue  # cut off, and then there is no state beside it
            if isinstance(said, dict) and said.get("run") == str(path):
                states += sorted(owner.parent.glob("penstock-*.state"))
    if states:
        folders = dict.fromkeys(str(state.parent) for state in states)
        raise NotFoundError(
            f"penstock: run {path} has no run.json, and {' and '.join(map(str, states))} "
            f"{'is' if len(states) == 1 else 'are'} of a training whose run folder was there; if it "
            "was moved, open it where it is now, or give another run=; else put it back; removing "
            f"{' and '.join(folders)} deletes that training's commits, also for a run folder that "
            "was moved, and begins at step 0"
        )


def _found(path: str, folders: Iterable[str], moved: bool) -> str:
    """Returns where a state file is, which a moved run has in its own folders if anywhere."""
    path = os.path.realpath(path)
    if os.path.exists(path) and not moved:
        return path
    for folder in folders:
        own = os.path.join(folder, os.path.basename(path))
        if os.path.exists(own):
            return os.path.realpath(own)
    return path


def _with_files_found(said: dict[str, Any], here: str, identifier: str) -> dict[str, Any]:
    """Returns what run.json says, with the places where files are now.

    A moved or copied run gets ``identifier`` and folders of its own.
    """
    place = said["place"]
    moved = place != here
    found = {**said, "place": here, "folders": [os.path.realpath(f) for f in said["folders"]]}
    if moved:
        found.update(id=identifier, folders=[here])
    if said["state"]:
        own = [here, *found["folders"]]
        paths = [_found(path, own, moved) for path in said["state"]["paths"]]
        found["state"] = {**said["state"], "paths": paths}
    return found


class _Lock:
    """The record lock of a run folder. Forked children do not hold it."""

    def __init__(self, folder: pathlib.Path) -> None:
        self._name = os.path.realpath(folder)
        with _registry:
            if self._name in _open_folders:
                raise UnavailableError(
                    f"penstock: run {folder} is open in this process already; close the optimizer "
                    "that has it, or name another run"
                )
            self._file = os.open(folder / "run.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                os.close(self._file)
                if error.errno not in (errno.EACCES, errno.EAGAIN):
                    raise explained(error, f"{folder / 'run.lock'} cannot be locked") from None
                raise UnavailableError(
                    f"penstock: run {folder} is in use by another process; end that process, or "
                    "name another run"
                ) from None
            if not os.path.exists(folder / "run.lock"):  # its last owner has just removed the run
                os.close(self._file)
                raise UnavailableError(f"penstock: run {folder} was just removed; try again")
            _open_folders.add(self._name)

    def release(self) -> None:
        with _registry:
            _open_folders.discard(self._name)
            file, self._file = self._file, -1
            if file >= 0:
                os.close(file)


class Run:
    """One training's run folder. Opened, it is locked; see :meth:`open`.

    Attributes:
        folder: the run folder.
        folders: where new state files go; ``folders`` of the C interface's options.
        continued: the files of the last commit, none in a new run; ``continue`` of the options.
    """

    def __init__(self, folder: pathlib.Path, lock: _Lock, said: dict[str, Any]) -> None:
        self.folder = folder
        self.folders: list[str] = []
        self._lock: _Lock | None = lock
        self._said = said  # what run.json says, unless that is not known for certain
        self._unsure = False  # a write of run.json has not ended: it says the old or the new
        self._replaced = False  # run.json may be another file than the one that is watched
        self._process = os.getpid()
        self._keeps_files = False

    @property
    def continued(self) -> list[str]:
        state = self._said["state"]
        return list(state["paths"]) if state else []

    @property
    def closed(self) -> bool:
        return self._lock is None

    @property
    def uuid(self) -> str | None:
        """The state that was committed last, if any was."""
        state = self._said["state"]
        return state["uuid"] if state else None

    @classmethod
    def open(
        cls,
        folder: PathLike | None,
        nvme_path: None | PathLike | Sequence[PathLike] = None,
        kind: str = "optimizer",
    ) -> Run:
        """Opens a run, or makes it.

        Args:
            folder: the run folder. None: a new one within the first ``nvme_path``.
            nvme_path: the folder or folders on drives for state files, which exist.
            kind: ``"optimizer"`` or ``"module"``.
        """
        nvme = paths_of(nvme_path)
        _check_places(folder, nvme)
        identifier = secrets.token_hex(8)
        path = pathlib.Path(
            path_of(folder, "run")
            if folder is not None
            else os.path.join(nvme[0], f"penstock-{identifier}")
        )
        try:
            if folder is None:
                remove_abandoned(nvme[0])
            _check_not_foreign(path)
            if (path / "run.json").exists():
                read_run(path)  # nothing is made in a folder that is no run of the package
            _check_no_orphan(path, nvme)
            path.mkdir(parents=True, exist_ok=True)
            lock = _Lock(path)
        except OSError as error:
            raise explained(error, f"run {path} cannot be made") from None
        try:
            return cls._opened(path, lock, nvme, kind, identifier, folder is not None)
        except OSError as error:
            lock.release()
            raise explained(error, f"run {path} cannot be opened") from None
        except BaseException:
            lock.release()
            raise

    @classmethod
    def _opened(
        cls,
        path: pathlib.Path,
        lock: _Lock,
        nvme: list[str],
        kind: str,
        identifier: str,
        named: bool,
    ) -> Run:
        """Reads run.json or makes it, removes what nothing names, and makes folders for files."""
        said: dict[str, Any] = {
            "penstock_run": VERSION,
            "id": identifier,
            "kind": kind,
            "named": named,
            "place": str(path),
            "folders": [],
            "state": None,
        }
        if (path / "run.json").exists():
            said = read_run(path)
        if said["kind"] != kind:
            raise InvalidArgumentError(
                f"penstock: run {path} is of kind {said['kind']}, and {kind} was asked for; name "
                "another run"
            )
        said = _with_files_found(said, str(path), identifier)
        run = cls(path, lock, said)
        run._remove_unnamed()
        state_folder = f"penstock-{said['id']}"
        run.folders = [os.path.join(root, state_folder) for root in nvme] or [str(path)]
        added = [f for f in run.folders if f not in said["folders"]]
        run._write({**said, "folders": [*said["folders"], *added]})
        for folder in run.folders:
            os.makedirs(folder, exist_ok=True)
            if folder != str(path):
                write_atomically(pathlib.Path(folder) / OWNER, json.dumps({"run": str(path)}))
        return run

    def have_watched(self, engine: Any) -> None:
        """Has an engine's commits fail from now on when the run folder or run.json is gone."""
        engine.watch(str(self.folder), ["run.json"])
        self._replaced = False

    def renew_watch(self, engine: Any) -> None:
        """Does the same if run.json was replaced here since; else what was watched stays so."""
        if self._replaced:
            self.have_watched(engine)

    def keep_files(self) -> None:
        """Has closing leave all files: a commit was made that run.json cannot name any more."""
        self._keeps_files = True

    def note(self, uuid: str, paths: Iterable[str]) -> None:
        """Notes a state that has a durable commit, and removes all files that it does not have.

        After a failure nothing is removed until run.json is written: by the next call.
        """
        state = {"uuid": uuid, "paths": [os.path.realpath(path) for path in paths]}
        said = self._said
        if not self._unsure and said["state"] == state and said["folders"] == self.folders:
            return
        try:
            self._write({**said, "state": state})
            self._remove_unnamed()
            left = [f for f in said["folders"] if f not in self.folders]
            if left:
                self._leave_folders(left)
                self._write({**self._said, "folders": list(self.folders)})
        except OSError as error:
            raise explained(error, f"run {self.folder} cannot be written") from None

    def close(self) -> None:
        """Removes what no commit names, and lets the run go. Does nothing in a forked child."""
        if self._lock is None or os.getpid() != self._process:
            return
        try:
            if not self._keeps_files and not self._unsure:
                self._remove_unnamed()
                if self._said["state"] is None:
                    self._remove_run()
        except OSError as error:
            raise explained(error, f"run {self.folder} cannot be closed") from None
        finally:
            self._lock.release()
            self._lock = None

    def _write(self, said: dict[str, Any]) -> None:
        """Writes run.json, and only then goes by it."""
        self._unsure = self._replaced = True
        write_atomically(self.folder / "run.json", json.dumps(said, indent=1) + "\n")
        self._said = said
        self._unsure = False

    def _remove_unnamed(self) -> None:
        """Removes state files that are not the commit's, if all of the commit's are there."""
        named = set(self.continued)
        if not all(os.path.exists(path) for path in named):
            return
        for folder in self._said["folders"]:
            for file in pathlib.Path(folder).glob("penstock-*.state"):
                if str(file) not in named and os.path.realpath(file) not in named:
                    file.unlink(missing_ok=True)

    def _leave_folders(self, folders: Iterable[str]) -> None:
        """Removes folders of state files that are empty, but for the run folder itself."""
        for folder in folders:
            if folder != str(self.folder):
                _remove_if_empty(folder)

    def _remove_run(self) -> None:
        """Removes a run that has no commit."""
        self._leave_folders(self._said["folders"])
        for name in ("run.json", "run.json.new", "run.lock"):
            (self.folder / name).unlink(missing_ok=True)
        _remove_if_empty(str(self.folder))


def _remove_if_empty(folder: str) -> None:
    """Removes a folder in which nothing is but, at most, the name of its run."""
    try:
        if os.listdir(folder) == [OWNER]:
            os.unlink(os.path.join(folder, OWNER))
        os.rmdir(folder)
    except OSError:
        pass  # not empty, or gone: whatever else is in it is not ours


def remove_abandoned(root: PathLike) -> None:
    """Removes runs in ``root`` that nobody named or committed, and whose process is gone."""
    for folder in pathlib.Path(root).glob("penstock-*"):
        try:
            said = read_run(folder)
            if said["named"] or said["state"] is not None:
                continue
            if said["place"] != os.path.realpath(folder):
                continue  # a copy: its files may be another's
            lock = _Lock(folder)
        except (OSError, PenstockError):
            continue  # no run, in use, or not ours to judge
        try:
            run = Run(folder, lock, read_run(folder))
            run._remove_unnamed()
            if run.uuid is None:
                run._remove_run()
        except (OSError, PenstockError):
            pass  # it can wait for the next run
        finally:
            lock.release()
