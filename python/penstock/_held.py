"""What an optimizer of level 1 holds: a run folder, and an engine once it is needed."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from penstock import _rules
from penstock._named_commit import NamedCommit
from penstock._run import Run
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
                self.training = self._make(
                    groups, self._run, self._run.continued, begin_with=begin_with
                )
            except BaseException:
                self._leave_run()
                raise
        return self.training

    def go_to(self, commit: NamedCommit, groups: Groups) -> None:
        """Continues the commit that a state_dict names, unless all is as it left it."""
        self.check()
        training = self.training
        if training is not None:
            if training.uuid == commit.uuid and training.is_as_committed(commit.step):
                return
            run = self.options.run or commit.run
            commit.check_there(run, training.uuid, training.durable_calls())
            training.check_parameters(groups)
            self._ended = "the state was given up, and the commit of a state_dict was not opened"
            self.training = None
            training.close(give_up=True)
        options = self.options
        if options.run is None:
            self._leave_run()
            if commit.run_is_there or commit.snapshot is None:
                self.options = options._replace(run=commit.run)
        try:
            self.training = self._made_from(commit, groups)
            self._ended = None
            if training is not None:
                self.training.commits.take_over(training.commits, self.training.guard)
        except BaseException:
            self._leave_run()
            self.options = options
            raise

    def _made_from(self, commit: NamedCommit, groups: Groups) -> Training:
        folder = self.options.run
        if commit.snapshot is None and not os.path.exists(os.path.join(str(folder), "run.json")):
            raise InvalidArgumentError(
                f"penstock: the state is that of run {folder}, which is not there; give run=, where "
                "it is now"
            )
        if self._run is None or self._run.closed:
            self._run = Run.open(folder, self.options.nvme_path)
        run = self._run
        return commit.open(run, lambda files: self._make(groups, run, files, commit))

    def _make(
        self,
        groups: Groups,
        run: Run,
        files: list[str],
        commit: NamedCommit | None = None,
        begin_with: Reader | None = None,
    ) -> Training:
        return Training(
            self.options, self._rule, self._defaults, groups, run, files, commit, begin_with
        )

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
