"""What an optimizer of level 1 holds: a run folder, and an engine once it is needed."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from penstock import _rules
from penstock._run import Run, read_run
from penstock._snapshot import files_of
from penstock._training import Options, Training
from penstock._universal_files import Reader
from penstock.errors import InvalidArgumentError

Groups = list[dict[str, Any]]


class Held:
    """Opens runs, makes engines, and frees both, for one optimizer.

    Attributes:
        training: the engine with what belongs to it; None until it is needed.
    """

    def __init__(self, options: Options, rule: _rules.Rule, defaults: Mapping[str, Any]) -> None:
        self.options = options
        self.training: Training | None = None
        self._rule = rule
        self._defaults = defaults
        self._run: Run | None = None
        self._ended: str | None = None  # why there is no engine and none will be made

    def begin(self, resume: Any, groups: Groups) -> None:
        """Opens the run that was named, and continues its commit, if there is one."""
        folder = self.options.run
        if folder is None:
            if not self.options.nvme_path:
                Run.open(None, None)  # says what is missing
            if resume is True:
                raise InvalidArgumentError("penstock: resume=True needs run=, the folder of a run")
            return
        self._run = Run.open(folder, self.options.nvme_path)
        try:
            has = bool(self._run.continued)
            if has and resume is False:
                raise InvalidArgumentError(
                    f"penstock: run {folder} has a commit, and resume is False; name another run"
                )
            if resume is True and not has:
                raise InvalidArgumentError(
                    f"penstock: run {folder} has no commit, and resume is True; name another run"
                )
            if has:
                self.made(groups)
        except BaseException:
            self._leave_run()
            raise

    def check(self) -> None:
        """Raises if the optimizer has ended."""
        if self._ended is not None:
            raise InvalidArgumentError(f"penstock: {self._ended}; make a new optimizer")

    def begin_with(self, states: Reader, groups: Groups) -> None:
        """Makes the engine with the states of another training."""
        if self.training is not None:
            raise InvalidArgumentError(
                "penstock: states of another training were given to an optimizer that has its own "
                "already; load them before the first step, with a run that has no commit"
            )
        self.made(groups, states)

    def made(self, groups: Groups, begin_with: Reader | None = None) -> Training:
        """Returns the engine, which is made now if it was not needed before."""
        self.check()
        if self.training is None:
            try:
                if self._run is None:
                    self._run = Run.open(self.options.run, self.options.nvme_path)
                self.training = self._make(groups, self._run, begin_with=begin_with)
            except BaseException:
                self._leave_run()
                raise
        return self.training

    def _make(
        self,
        groups: Groups,
        run: Run,
        files: list[str] | None = None,
        step: int | None = None,
        begin_with: Reader | None = None,
    ) -> Training:
        return Training(
            self.options, self._rule, self._defaults, groups, run, files, step, begin_with
        )

    def go_to(self, said: Mapping[str, Any], groups: Groups) -> None:
        """Continues the commit that a state_dict names, unless all is as it left it."""
        self.check()
        training = self.training
        if training is not None:
            if training.uuid == said["uuid"] and training.is_as_committed(said["step"]):
                return
            self._check_there(said, training)
            self._ended = "the state was given up, and the commit of a state_dict was not opened"
            self.training = None
            training.close(give_up=True)
        options = self.options
        if options.run is None:
            self._leave_run()
            self.options = options._replace(run=said["run"])
        try:
            self.training = self._made_from(said, groups)
            self._ended = None
            if training is not None:
                self.training.commits.attach(training.commits.attached, self.training.guard)
        except BaseException:
            self._leave_run()
            self.options = options
            raise

    def _check_there(self, said: Mapping[str, Any], training: Training) -> None:
        """Raises, before a training is given up, if a commit is certainly not there any more."""
        snapshot = said.get("snapshot")
        if snapshot and os.path.isdir(snapshot):
            files_of(snapshot)
            return
        folder = said["run"] if self.options.run is None else self.options.run
        last = (read_run(folder)["state"] or {}).get("uuid")
        if last != said["uuid"]:
            raise InvalidArgumentError(
                f"penstock: run {folder} has the state {last}, and {said['uuid']} was saved; the "
                "state_dict is older than the state, or of another run"
            )
        step = training.durable_calls() if last == training.uuid else said["step"]
        if step != said["step"]:
            raise InvalidArgumentError(
                f"penstock: the last commit of run {folder} is of step {step}, and step "
                f"{said['step']} was saved; only the last commit can be continued, or a snapshot"
            )

    def _made_from(self, said: Mapping[str, Any], groups: Groups) -> Training:
        """Continues the run's last commit or that of a snapshot, if it is the one that is named."""
        folder, snapshot = self.options.run, said.get("snapshot")
        files = files_of(snapshot) if snapshot and os.path.isdir(snapshot) else None
        if files is None and not os.path.exists(os.path.join(str(folder), "run.json")):
            raise InvalidArgumentError(
                f"penstock: the state is that of run {folder}, which is not there; give run=, where "
                "it is now"
            )
        if self._run is None or self._run.closed:
            self._run = Run.open(folder, self.options.nvme_path)
        if files is None and self._run.uuid != said["uuid"]:
            raise InvalidArgumentError(
                f"penstock: run {folder} has the state {self._run.uuid}, and {said['uuid']} was "
                "saved; the state_dict is older than the state, or of another run"
            )
        if self._run.uuid == said["uuid"]:
            try:
                return self._make(groups, self._run, None, said["step"])
            except InvalidArgumentError:  # of another step
                if files is None:
                    raise
        return self._make(groups, self._run, files, said["step"])

    def _leave_run(self) -> None:
        run, self._run = self._run, None
        if run is not None:
            run.close()

    def close(self) -> None:
        """Brings all weights back and frees everything. May be called again."""
        self._ended = self._ended or "the optimizer was closed"
        training, self.training = self.training, None
        try:
            if training is not None:
                training.close()
        finally:
            self._leave_run()
