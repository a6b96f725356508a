"""The commit that a ``state_dict()`` names: whether it still exists, and its files."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from penstock._run import Run, state_of
from penstock._text_files import check_fields, is_count, is_path, is_text
from penstock._torch_state import commit_named_in
from penstock.errors import CorruptionError, InvalidArgumentError, NotFoundError, PenstockError

_T = TypeVar("_T")
_FIELDS = {"run": is_path, "uuid": is_text, "step": is_count}
_log = logging.getLogger("penstock")


class CommitGoneError(InvalidArgumentError):
    """The last commit is not the requested one."""


def said_of(state_dict: Any) -> Any:
    """Returns the commit's entry in a ``state_dict``; None if it names none.

    Raises:
        InvalidArgumentError: it is no ``state_dict`` of an optimizer.
    """
    groups = {"param_groups": lambda value: isinstance(value, (list, tuple))}
    check_fields(state_dict, groups, "state_dict", InvalidArgumentError)
    for number, group in enumerate(state_dict["param_groups"]):
        if not isinstance(group, Mapping):
            raise InvalidArgumentError(
                f"penstock: state_dict: param_groups[{number}] is {group!r:.80}, which is no group"
            )
    return commit_named_in(state_dict)


class NamedCommit:
    """The contents of ``state_dict()["penstock"]``.

    Attributes:
        run: the run's folder at that time.
        uuid: of the state.
        step: how many steps had been made.
        engine_step: the engine's count: at level 1 without steps that a scaler skipped. None in a
            state_dict of an older release.
        identity: of the training, at level 1.
        snapshot: a folder with a copy, if one is named and exists.
    """

    def __init__(self, said: Any) -> None:
        check_fields(said, _FIELDS, 'state_dict["penstock"]', InvalidArgumentError)
        self.run = str(said["run"])
        self.uuid: str = said["uuid"]
        self.step: int = said["step"]
        self.engine_step: int | None = said.get("engine_step")
        self.identity: str | None = said.get("identity")
        snapshot: Any = said.get("snapshot")
        self.snapshot: str | None = snapshot if snapshot and os.path.isdir(snapshot) else None

    def run_for(self, named: Any, opened: Any) -> Any:
        """Chooses the run that takes the commit.

        Args:
            named: the caller's run, if any.
            opened: the open run, if any.

        Returns:
            The folder. None: that of a new run.
        """
        if named is not None:
            return named
        if os.path.exists(os.path.join(self.run, "run.json")):
            return self.run
        return self.run if opened is None and self.snapshot is None else opened

    def _gone(self, run: Any, last: str) -> CommitGoneError:
        return CommitGoneError(
            f"penstock: the last commit of run {run} is of {last}, and step {self.step} was saved, "
            f"in run {self.run}; only the last commit or a snapshot can be resumed"
        )

    def check_step(self, run: Run, step: int) -> None:
        """Raises CommitGoneError if files of the commit are of another step."""
        if step != self.step:
            raise self._gone(run.folder, f"step {step}")

    def check_there(self, run: Any, open_uuid: str | None, open_step: int | None) -> None:
        """Raises, before anything is closed, if the commit is certainly gone.

        Args:
            run: the folder of the run that takes it.
            open_uuid: the state that is open in this process.
            open_step: the step of the last commit of that state.
        """
        if self.snapshot is not None:
            if not state_of(self.snapshot):
                raise InvalidArgumentError(
                    f"penstock: {self.snapshot} has no commit; name another snapshot"
                )
            return
        if not os.path.exists(os.path.join(run, "run.json")):
            raise InvalidArgumentError(
                f"penstock: the state is that of run {run}, which is not there; give run=, where it "
                "is now"
            )
        last = (state_of(run) or {}).get("uuid")
        if last != self.uuid:
            raise self._gone(run, "another state" if last else "no state")
        if last == open_uuid and open_step != self.step:
            raise self._gone(run, f"step {open_step}")

    def open(self, run: Run, make: Callable[[str | None], _T]) -> _T:
        """Returns the result of ``make`` for the run's own commit (None), or for a snapshot's.

        Args:
            run: the run that takes it.
            make: raises InvalidArgumentError or CorruptionError, and has written nothing, if there
                is no intact commit of the step.
        """
        problem: PenstockError = self._gone(run.folder, "another state")
        if run.uuid == self.uuid:
            try:
                return make(None)
            except CommitGoneError as error:
                problem = error
            except (InvalidArgumentError, NotFoundError, CorruptionError) as error:
                problem = type(error)(
                    f"penstock: step {self.step} was saved in run {self.run}; only the last commit "
                    f"or a snapshot can be resumed, and in run {run.folder} that fails: {error}"
                )
        if self.snapshot is None:
            raise problem
        if isinstance(problem, CorruptionError):
            _log.warning("%s; it is taken from snapshot %s", problem, self.snapshot)
        return make(self.snapshot)

    @property
    def options(self) -> dict[str, Any]:
        """Returns engine options with which it resumes from this commit or fails."""
        return {} if self.engine_step is None else {"step": self.engine_step}
