"""The commit that a ``state_dict()`` names: whether it is still there, and which files it is in."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from penstock._run import Run, read_run
from penstock._snapshot import files_of
from penstock.errors import InvalidArgumentError

_T = TypeVar("_T")


class OtherStepError(InvalidArgumentError):
    """The last commit of a run is not of the step that was asked for."""


class NamedCommit:
    """What ``state_dict()["penstock"]`` says.

    Attributes:
        run: the folder of the run that it was made in.
        uuid: of the state.
        step: how many steps had been made.
        snapshot: a folder with a copy, if one is named and there.
    """

    def __init__(self, said: Mapping[str, Any]) -> None:
        self.run = str(said["run"])
        self.uuid: str = said["uuid"]
        self.step: int = said["step"]
        self._counts_skipped = said.get("version", 2) > 1
        snapshot = said.get("snapshot")
        self.snapshot: str | None = snapshot if snapshot and os.path.isdir(snapshot) else None

    @property
    def run_is_there(self) -> bool:
        return os.path.exists(os.path.join(self.run, "run.json"))

    def _gone(self, run: Any, last: str) -> OtherStepError:
        return OtherStepError(
            f"penstock: the last commit of run {run} is of {last}, and step {self.step} was saved; "
            "only the last commit can be continued, or a snapshot"
        )

    def check_step(self, run: Run, step: int, engine_step: int) -> None:
        """Raises OtherStepError if files of the commit are of another step.

        Args:
            engine_step: without those that a scaler has skipped, as version 1 counts.
        """
        if (step if self._counts_skipped else engine_step) != self.step:
            raise self._gone(run.folder, f"step {step}")

    def check_there(self, run: Any, open_uuid: str, open_step: int | None) -> None:
        """Raises, before anything is given up, if the commit is certainly not there any more.

        Args:
            run: the folder of the run that is to have it.
            open_uuid: the state that is open in this process,
            open_step: and the step of its last commit.
        """
        if self.snapshot is not None:
            files_of(self.snapshot)
            return
        last = (read_run(run)["state"] or {}).get("uuid")
        if last != self.uuid:
            raise self._gone(run, f"state {last}")
        if last == open_uuid and self._counts_skipped and open_step != self.step:
            raise self._gone(run, f"step {open_step}")

    def open(self, run: Run, make: Callable[[list[str]], _T]) -> _T:
        """Returns what ``make`` makes of the files that the commit is in.

        Args:
            run: the run that is to have it.
            make: raises OtherStepError if files are of another step.
        """
        gone = self._gone(run.folder, f"state {run.uuid}")
        own = [run.continued] if run.uuid == self.uuid else []
        for files in own + ([files_of(self.snapshot)] if self.snapshot is not None else []):
            try:
                return make(files)
            except OtherStepError as error:
                gone = error
        raise gone
