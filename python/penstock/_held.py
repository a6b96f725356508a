"""The resources of an optimizer of level 1: a run folder, and an engine once it is needed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock import _rules
from penstock._model import members_of
from penstock._named_commit import NamedCommit
from penstock._parameters import partition
from penstock._run import Run
from penstock._training import Options, Training
from penstock._universal_files import Reader
from penstock.errors import InvalidArgumentError

Groups = list[dict[str, Any]]


class Held:
    """Opens runs, makes engines, and frees both, for one optimizer.

    Attributes:
        training: the engine and its parts; None until it is needed.
    """

    def __init__(self, options: Options, rule: _rules.Rule, defaults: Mapping[str, Any]) -> None:
        self.options = options
        self.training: Training | None = None
        self._rule = rule
        self._defaults = defaults
        self._run: Run | None = None
        self._ended: str | None = None  # why there is no engine any more

    def begin(self, resume: Any, groups: Groups) -> None:
        """Opens the named run, and resumes from its commit, if any."""
        folder = self.options.run
        if folder is None:
            if not self.options.nvme_path:
                Run.open(None, None)  # raises
            if resume is True:
                raise InvalidArgumentError("penstock: resume=True needs run=, the folder of a run")
            return
        self._run = Run.open(folder, self.options.nvme_path)
        try:
            has = self._run.uuid is not None
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
        """Returns the engine, which is made at the first call."""
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

    def go_to(self, commit: NamedCommit, groups: Groups) -> None:
        """Resumes from the commit that a state_dict names, unless the training is at it already."""
        self.check()
        training = self.training
        opened = None if self._run is None else self._run.folder
        run = commit.run_for(self.options.run, opened)
        if training is None:
            commit.check_there(run, None, None)
        else:
            if training.uuid == commit.uuid and training.is_as_committed(commit.step):
                return
            commit.check_there(run, training.uuid, training.durable_calls())
        self._check_identity(commit, groups)
        if training is not None:
            self._ended = "the state was given up, and the commit of a state_dict was not opened"
            self.training = None
            training.close(give_up=True)
        options = self.options
        if options.run is None:
            self._leave_run()
            self.options = options._replace(run=run)
        try:
            if self._run is None or self._run.closed:
                self._run = Run.open(run, self.options.nvme_path)
            opened_run = self._run
            self.training = commit.open(
                opened_run, lambda kept: self._make(groups, opened_run, kept, commit)
            )
            self._ended = None
            if training is not None:
                self.training.commits.take_over(training.commits)
        except BaseException:
            self._leave_run()
            self.options = options
            raise

    def _check_identity(self, commit: NamedCommit, groups: Groups) -> None:
        """Raises, before a training is closed, if a commit is of another one."""
        entries = partition(groups, self.options.model).entries()
        if commit.identity not in (None, _rules.identity(self._rule, members_of(entries)).whole):
            raise InvalidArgumentError(
                "penstock: the state_dict is of another training (the rule, or names, shapes, "
                "dtypes, groups or requires_grad of parameters differ); make the same optimizer"
            )

    def _make(
        self,
        groups: Groups,
        run: Run,
        snapshot: str | None = None,
        commit: NamedCommit | None = None,
        begin_with: Reader | None = None,
    ) -> Training:
        return Training(
            self.options, self._rule, self._defaults, groups, run, snapshot, commit, begin_with
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
