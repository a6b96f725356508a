"""The optimizer of a module whose parameters are penstock's: ends steps, commits, and continues."""

from __future__ import annotations

import copy
import os
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import torch

from penstock import _library, _rules, _state
from penstock._amp import loss_scale_of
from penstock._buffers import Buffers
from penstock._commits import Commits, Ending
from penstock._files import snapshot_of
from penstock._hooks import Hooks
from penstock._losses import Losses, is_in_doubt
from penstock._named_commit import NamedCommit, said_of
from penstock._opening import Opened, Opening
from penstock._rows import Rows
from penstock._runtime import Runtime, closed_error, refuse_copies
from penstock._storage import Unit
from penstock._torch_state import Elsewhere, name_commit, options_of
from penstock._universal_files import Reader
from penstock.errors import InvalidArgumentError


class Training(NamedTuple):
    """What an optimizer takes over.

    Attributes:
        opening: makes engines for other commits.
        opened: the run, and its engine.
        named_run: the folder that the caller has named, if any.
    """

    hooks: Hooks
    opening: Opening
    opened: Opened
    commit_every_steps: int
    named_run: str | os.PathLike[str] | None


class ModuleOptimizer(torch.optim.Optimizer):
    """Made by :func:`penstock.initialize`. Schedulers of torch work on ``param_groups``.

    Attributes:
        grad_norm: of the last step, before clipping; 0 before the first.
        skipped: whether the last step changed nothing, because its gradient was not finite.
        continued: whether the training goes on from a commit.
    """

    __deepcopy__ = refuse_copies
    __reduce_ex__ = refuse_copies

    def __init__(self, params: Any, rule: _rules.Rule, defaults: dict[str, Any]) -> None:
        self.rule = rule
        self.grad_norm = 0.0
        self.skipped = False
        self.continued = False
        self._max_norm = 0.0
        self._clipped = 0  # the steps that had ended when `_max_norm` was given
        self._scaled = -1  # the steps that had ended at the last backward of a scaled loss
        self._made = False
        self.losses = Losses(lambda: self._runtime.steps)
        self.rows = Rows({}, {}, self.losses)
        super().__init__(params, defaults)
        self.state = Elsewhere()
        for number, group in enumerate(self.param_groups):
            _rules.check_group(group, number, self.defaults)

    def begin(self, training: Training) -> None:
        """Takes over a training."""
        self.hooks = training.hooks
        self._runtime: Runtime = training.hooks.runtime
        self._opening = training.opening
        self._commit_every = training.commit_every_steps
        self._named_run = training.named_run
        self._buffers = Buffers(training.hooks.root)
        self._commits = Commits(self._runtime.engine, training.opened.run, self._sections)
        self._runtime.before_step = self._commits.begin_due
        self._made = True
        self._take(training.opened, None)

    def _take(self, opened: Opened, commit: NamedCommit | None) -> None:
        """Goes on with a run and its engine, which continues ``commit`` if that was asked for."""
        self._run = opened.run
        self.continued = opened.continued is not None
        self._commit = commit  # until a step was made
        self._close = weakref.finalize(self.hooks, _free, self._commits.ending)
        if opened.continued is not None:
            self._commits.go_on_from(opened.continued)
            self._set_groups(opened.continued["groups"])
            self._buffers.resume(opened.continued, self._run.folder)

    # Steps.

    @property
    def loss_scale(self) -> float:
        """The factor for the loss of this step in fp16, as the configuration's ``fp16`` says; else 1."""
        scale: float = self._runtime.engine.loss_scale()
        return scale

    def backward(self, loss: torch.Tensor, **options: Any) -> None:
        """Computes the gradients of a loss, in fp16 times :attr:`loss_scale`, which :meth:`step`
        takes out again.

        Args:
            loss: of a micro-batch.
            options: of ``torch.Tensor.backward``.
        """
        self.rows.note(loss)
        if self._opening.scales_loss:
            self._scaled = self._runtime.steps
            loss = loss.float() * self.loss_scale
        loss.backward(**options)

    def _check_scaled(self) -> None:
        if self._opening.scales_loss and self._scaled != self._runtime.steps:
            raise InvalidArgumentError(
                "penstock: fp16 is enabled, and the loss of this step was not scaled; call "
                "optimizer.backward(loss) in place of loss.backward()"
            )

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None, *, loss: Any = None) -> Any:
        """Performs a step with the gradients that the hooks have taken.

        Returns when the updates have begun; the next use of a unit waits for its own. A gradient or
        a loss that is not finite changes nothing, with a warning.

        Args:
            closure: computes loss and gradients, as in torch.
            loss: the loss of the step, if :meth:`report_loss` has not been given it. A commit is
                confirmed by the next finite loss. After one that is not, no commit takes the place
                of the last one that is confirmed; after two in a row the training ends, and the
                commit in doubt is taken back.
        """
        computed = None
        if closure is not None:
            with torch.enable_grad():
                computed = closure()
            self.rows.note(computed)
        with self.losses.of_step(loss):
            self._step()
        return computed

    def _step(self) -> None:
        scaled, found_inf = loss_scale_of(self)
        if scaled != 1 and self._opening.scales_loss:
            raise InvalidArgumentError(
                "penstock: a GradScaler scales the loss, and so does fp16.enabled in the configuration; "
                "leave one of them out"
            )
        if not self._runtime.take_gradients():
            self.losses.clear()
            return  # as other optimizers of torch do
        self._check_scaled()
        # A step that fails may be made again, and one that has ended behind an interrupt may not.
        max_norm = self._max_norm if self._clipped == self._runtime.steps else 0.0
        self._commits.finish()
        reported = self.losses.mean()
        loss_of_row = self.rows.loss(reported, self._runtime.engine)
        scale = 0.0 if self._opening.scales_loss else scaled  # 0: the engine's
        outcome = self._runtime.end_step(self.param_groups, max_norm, scale, reported, found_inf)
        self.losses.end_step(reported)
        self._commits.note_loss(reported)
        self._max_norm = 0.0
        self._commit = None
        self.grad_norm, self.skipped = outcome.grad_norm, outcome.skipped
        if self._commit_every > 0 and outcome.step % self._commit_every == 0:
            self._commits.take_soon()
        self.rows.end_step(outcome.step, self, loss_of_row)

    def report_loss(self, loss: Any) -> None:
        """Reports the loss of the step under way, before :meth:`step`: a number or a tensor.

        Call it once for each micro-batch, in each step or in none. See :meth:`step`.
        """
        self.losses.report(loss)

    _step_supports_amp_scaling = True

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drops the gradients of the step under way, if there are any."""
        if self._made and self._runtime.has_gradients:
            loss = self.losses.mean()
            self.losses.clear()
            self._runtime.drop_step(loss)
            self._max_norm = 0.0
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.grad = None

    def clip_grad_norm_(self, max_norm: float) -> torch.Tensor:
        """Has the step clip its gradient to a norm; returns the norm before.

        Gradients are the engine's, so ``torch.nn.utils.clip_grad_norm_`` finds none.
        """
        if not max_norm > 0:
            raise InvalidArgumentError(
                f"penstock: max_norm is {max_norm}; give a positive number, or do not clip"
            )
        self._max_norm, self._clipped = float(max_norm), self._runtime.steps
        return torch.tensor(self.gradient_norm())

    def gradient_norm(self) -> float:
        """Returns the norm of the gradient of the step under way, which is complete."""
        self._check_scaled()
        norm, _ = self._runtime.norm()
        return norm / self.loss_scale

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Is refused once the optimizer was made: the engine's files are laid out."""
        if self._made:
            raise InvalidArgumentError(
                "penstock: add_param_group is refused after penstock.initialize; give all groups "
                "to penstock.initialize"
            )
        super().add_param_group(param_group)

    # Commits.

    @property
    def in_doubt(self) -> bool:
        """Whether no loss since the last commit was finite, so that :meth:`commit` is refused."""
        return is_in_doubt(self._runtime.engine.describe())

    def _sections(self) -> dict[str, Any]:
        return {
            "calls": self._runtime.steps,
            "groups": _rules.group_options(self.param_groups),
            "buffers": self._buffers.state_dict(),
        }

    def _set_groups(self, groups: Any) -> None:
        for group, options in zip(self.param_groups, _state.decode(groups)):
            group.update(options)

    def attach(self, **things: Any) -> None:
        """Keeps the states of schedulers, loaders and the like in commits.

        If the run was continued, and no step was made since, they are given their states of the
        commit, and so are the groups and the generators of random numbers. A scheduler that is made
        sets the rates of the groups anew, so call it behind that, if with nothing to keep.
        """
        with self._runtime.lock:
            self._commits.attach(things)
        continued = self._commits.continued
        if continued is not None:
            self._set_groups(continued["groups"])

    @property
    def steps(self) -> int:
        """Counts all steps of the training, those that were skipped as well."""
        return self._runtime.steps

    def commit(self) -> int:
        """Makes weights and states durable as the last step left them; returns its number."""
        with self._runtime.lock:
            if self._runtime.closed:
                raise closed_error()
            if self._runtime.has_gradients:
                raise InvalidArgumentError(
                    "penstock: a commit was asked for between backward and step; call "
                    "optimizer.step() or optimizer.zero_grad() first"
                )
            self._runtime.begin()
            self._runtime.drop_step()
            self._commits.commit()
            return self._runtime.steps

    def state_dict(self) -> dict[str, Any]:
        """Commits, and returns what says which commit it is. It is small."""
        step = self.commit()
        groups: list[dict[str, Any]] = []
        number = 0
        for group, options in zip(self.param_groups, _rules.group_options(self.param_groups)):
            numbers = list(range(number, number + len(group["params"])))
            groups.append({**options, "params": numbers})
            number += len(numbers)
        found: dict[str, Any] = {"state": {}, "param_groups": groups}
        name_commit(found, {"run": self._run.folder, "uuid": self._run.uuid, "step": step})
        return found

    def begin_with(self, states: Reader) -> None:
        """Begins with the states of another training: what penstock.universal.load calls."""
        runtime = self._runtime
        if runtime.begun:
            raise InvalidArgumentError(
                "penstock: states of another training were given after the module was used, or to a "
                "run that has a commit; load them right after penstock.initialize, or give it "
                "weights=penstock.universal.Reader(folder), which a device= needs"
            )
        entries = [entry for unit in runtime.units for entry in unit.entries]
        names = [entry.name for entry in entries if entry.trained]
        states.check_names(names)
        steps = states.steps(names)

        def fill(unit: Unit) -> None:
            tensors = [(e.name, e.parameter, e.trained) for e in unit.entries]
            states.fill(runtime.engine, unit.index, tensors, self.rule.moments)

        runtime.fill = fill
        runtime.begin()
        runtime.engine.begin_at(steps, steps)
        runtime.steps = steps

    def describe(self) -> dict[str, Any]:
        """Returns layout, files, budgets and counts of the engine (docs/c_api.md)."""
        described: dict[str, Any] = self._runtime.engine.describe()
        return described

    def counters(self) -> dict[str, Any]:
        """Returns the bytes and counts of the engine since it was made (docs/c_api.md)."""
        counters: dict[str, Any] = self._runtime.engine.counters()
        return counters

    @property
    def updates(self) -> int:
        """How many steps were made that were not skipped: t of the rule."""
        made: int = self._runtime.engine.describe()["optimizer_steps"]
        return made

    def states(self) -> Iterator[tuple[str, torch.nn.Parameter, dict[str, torch.Tensor]]]:
        """Yields name, parameter and states of each that is trained, fp32, one after the other."""
        runtime = self._runtime
        runtime.begin()
        kinds = {"master": _library.MASTER, **self.rule.moments}
        for unit in runtime.units:
            for entry in unit.entries:
                if not entry.trained:
                    continue
                states = {}
                for name, kind in kinds.items():
                    value = torch.empty(entry.parameter.shape, dtype=torch.float32, device="cpu")
                    with runtime.lock:
                        runtime.engine.read(
                            entry.unit, entry.tensor, kind, 0, value.numel(), value.data_ptr()
                        )
                    states[name] = value
                yield entry.name, entry.parameter, states

    def snapshot(self, folder: str | os.PathLike[str]) -> str:
        """Copies the commit of the last step; returns the path of the copy.

        Args:
            folder: a path that has a slash, where nothing is: the copy is a run of its own. Else a
                name: the copy is in ``snapshots`` of the run.

        A ``state_dict`` with this path under ``["penstock"]["snapshot"]`` finds the copy, whatever
        the run has committed since.
        """
        place = snapshot_of(folder)
        with self._runtime.lock:
            self._commits.finish()
            if self._commits.calls != self._runtime.steps:
                self.commit()
            made: str = self._runtime.engine.snapshot(place)
            return made

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Goes to the commit that :meth:`state_dict` has made; what came after it is given up.

        That is the last commit of its run, or one of which ``["penstock"]["snapshot"]`` names a
        snapshot (:meth:`snapshot`), which stays as it is.

        Raises:
            InvalidArgumentError: the run has gone on since, and there is no snapshot.
        """
        said = said_of(state_dict)
        if said is None:
            raise InvalidArgumentError(
                "penstock: the state_dict was not made by this optimizer; continue a run by its "
                "name: penstock.initialize(…, run=…)"
            )
        commit = NamedCommit(said)
        if not self._is_at(commit):
            self._go_to(commit)
        for group, options in zip(self.param_groups, state_dict["param_groups"]):
            # A copy: schedulers write into rates that are tensors.
            group.update(copy.deepcopy(options_of(options)))

    def _is_at(self, commit: NamedCommit) -> bool:
        """Whether the training is where a commit was made."""
        if (
            self._runtime.closed
            or self._runtime.has_gradients
            or commit.step != self._runtime.steps
        ):
            return False
        asked = self._commit
        return commit.uuid == self._run.uuid or (
            asked is not None and (asked.uuid, asked.step) == (commit.uuid, commit.step)
        )

    def _go_to(self, commit: NamedCommit) -> None:
        """Goes on from another commit. The training is closed if that cannot be opened."""
        self._commits.finish()
        run = commit.run_for(self._named_run, self._run.folder)
        commit.check_there(run, self._run.uuid, self._commits.calls)
        self._commits.drop_due()  # it would take the place of the one that is asked for
        self.close()
        opened = self._opening.open(run, commit)
        self._commits.go_on(opened.engine, opened.run)
        self._max_norm = 0.0
        self._take(opened, commit)
        self._runtime.go_on(opened.engine)

    def close(self) -> None:
        """Frees everything. The module's parameters show NaN from then on."""
        try:
            self._commits.ending.end()
        finally:
            self._commits.drop_due()
            self._runtime.close()
            self._close()


def _free(ending: Ending) -> None:
    """Frees what a training has outside of this process's garbage collection, and at its end."""
    try:
        ending.end()
    finally:
        try:
            ending.engine.close()
        finally:
            ending.run.close()
