"""A run: the folder that names the state of one training (docs/run_format.md).

The library locks it, writes it and removes files that no commit names. Nothing here needs torch.
"""

from __future__ import annotations

import gc
import logging
import os
from collections.abc import Mapping, Sequence
from typing import Any

from penstock import _library
from penstock._files import PathLike, path_of, paths_of
from penstock.errors import NotFoundError, UnavailableError

_log = logging.getLogger("penstock")


def state_of(folder: PathLike) -> Any:
    """Returns ``uuid`` and ``paths`` of the state of a run that need not be open.

    None: it has no commit, or there is no run.
    """
    try:
        return _library.read_run(os.fspath(folder))["state"]
    except NotFoundError:
        return None


class Run:
    """One training's run folder, open and locked. See :meth:`open`.

    Attributes:
        folder: the run folder.
        handle: the library's run, from which its engine is made.
    """

    def __init__(self, handle: _library.RunHandle) -> None:
        self.handle = handle
        self.closed = False
        self._last: str | None = None  # uuid when it was closed
        self._process = os.getpid()
        try:
            self.folder: str = self._describe()["folder"]
        except BaseException:
            handle.close()
            raise

    def _describe(self) -> Any:
        """Returns what the run says of itself, and logs its notices, each of which is given once."""
        described = self.handle.describe()
        for notice in described["notices"]:
            _log.warning("penstock: %s", notice)
        return described

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
        options: Mapping[str, Any] = {
            "run": None if folder is None else path_of(folder, "run"),
            "nvme_path": paths_of(nvme_path),
            "kind": kind,
        }
        try:
            return cls(_library.RunHandle(options))
        except UnavailableError as error:
            if "open in this process" not in str(error):
                raise
        gc.collect()  # an optimizer that nobody has any more, as in a notebook, has the run open
        return cls(_library.RunHandle(options))

    @property
    def uuid(self) -> str | None:
        """The UUID of the last committed state, if any."""
        if self.closed:
            return self._last
        state = self._describe()["state"]
        return state["uuid"] if state else None

    def close(self) -> None:
        """Removes files that no commit names, and closes the run. Does nothing in a forked child.

        Its engine is closed before.
        """
        if self.closed or os.getpid() != self._process:
            return
        try:
            self._last = self.uuid
        finally:
            self.closed = True
            self.handle.close()
