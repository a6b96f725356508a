"""The optimizer of a module whose parameters are penstock's: ends steps, commits, and continues."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch

from penstock import _rules, _state
from penstock._commits import Commits
from penstock._hooks import Hooks
from penstock._run import Run
from penstock._runtime import Runtime, refuse_copies
from penstock.errors import InvalidArgumentError


class Training(NamedTuple):
    """What an optimizer takes over.

    Attributes:
        continued: the text of the commit that the engine goes on from, if it does.
    """

    hooks: Hooks
    run: Run
    identity: str
    continued: dict[str, Any] | None
    commit_every_steps: int


class ModuleOptimizer(torch.optim.Optimizer):
    """Made by :func:`penstock.initialize`. Schedulers of torch work on ``param_groups``.

    Attributes:
        grad_norm: of the last step, before clipping; 0 before the first.
        skipped: whether the last step changed nothing, because its gradient was not finite.
    """

    __deepcopy__ = refuse_copies
    __reduce_ex__ = refuse_copies

    def __init__(self, params: Any, rule: _rules.Rule, defaults: dict[str, Any]) -> None:
        self.rule = rule
        self.grad_norm = 0.0
        self.skipped = False
        self._max_norm = 0.0
        self._made = False
        super().__init__(params, defaults)
        for number, group in enumerate(self.param_groups):
            _rules.check_group(group, number, self.defaults)

    def begin(self, training: Training) -> None:
        """Takes over a training."""
        self.hooks = training.hooks
        self._runtime: Runtime = training.hooks.runtime
        self._run = training.run
        self._identity = training.identity
        self._continued = training.continued
        self._commit_every = training.commit_every_steps
        self._close = weakref.finalize(self.hooks, _free, self._runtime.engine, self._run)
        self._commits = Commits(self._runtime.engine, self._run, self._sections)
        self._runtime.before_step = self._commits.begin_due
        self._made = True
        if self._continued is not None:
            described = self._runtime.engine.describe()
            self._run.note(described["uuid"], described["state_paths"])
            self._set_groups(self._continued["groups"])

    # Steps.

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Performs a step with the gradients that the hooks have taken.

        Returns when the updates have begun; the next use of a unit waits for its own.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if hasattr(self, "grad_scale"):
            raise InvalidArgumentError(
                "penstock: torch's GradScaler does not see the gradients of a module that was "
                "given to penstock.initialize; train in bf16"
            )
        if not self._runtime.take_gradients():
            return loss  # as other optimizers of torch do
        max_norm, self._max_norm = self._max_norm, 0.0
        self._commits.finish()
        outcome = self._runtime.end_step(self.param_groups, max_norm, 1.0)
        self.grad_norm, self.skipped = outcome.grad_norm, outcome.skipped
        if self._commit_every > 0 and outcome.step % self._commit_every == 0:
            self._commits.take_soon()
        return loss

    _step_supports_amp_scaling = True  # so that a scaler is seen, and refused by a line

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drops the gradients of the step under way, if there are any."""
        if self._made and self._runtime.has_gradients:
            self._runtime.drop_step()
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
        norm, _ = self._runtime.norm()
        self._max_norm = float(max_norm)
        return torch.tensor(norm)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Is refused once the optimizer was made: the engine's files are laid out."""
        if self._made:
            raise InvalidArgumentError(
                "penstock: add_param_group is refused after penstock.initialize; give all groups "
                "to penstock.initialize"
            )
        super().add_param_group(param_group)

    # Commits.

    def _sections(self) -> dict[str, Any]:
        return {
            "kind": "module",
            "identity": self._identity,
            "calls": self._runtime.steps,
            "groups": self._group_options(),
        }

    def _group_options(self) -> list[dict[str, Any]]:
        return [
            {key: value for key, value in group.items() if key not in ("params", "param_names")}
            for group in self.param_groups
        ]

    def _set_groups(self, groups: Any) -> None:
        for group, options in zip(self.param_groups, _state.decode(groups)):
            group.update(options)

    def attach(self, **things: Any) -> None:
        """Keeps the states of schedulers, loaders and the like in commits.

        If the run was continued, they are given their states of the commit, and so are the
        generators of random numbers.
        """
        self._commits.attach(things, lambda: self._runtime.lock)
        if self._continued is not None:
            _state.restore(self._continued, things)

    @property
    def continued(self) -> bool:
        """Whether the training goes on from a commit."""
        return self._continued is not None

    @property
    def steps(self) -> int:
        """Counts all steps of the training, those that were skipped as well."""
        return self._runtime.steps

    def commit(self) -> int:
        """Makes weights and states durable as the last step left them; returns its number."""
        with self._runtime.lock:
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
        return {
            "penstock": {"run": str(self._run.folder), "uuid": self._run.uuid, "step": step},
            "param_groups": self._group_options(),
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Goes on from the commit that :meth:`state_dict` has made, which the run continues.

        Raises:
            InvalidArgumentError: it is of another run or another step.
        """
        said = state_dict.get("penstock")
        if said is None:
            raise InvalidArgumentError(
                "penstock: the state_dict was not made by this optimizer; continue a run by its "
                "name: penstock.initialize(…, run=…)"
            )
        if said["uuid"] != self._run.uuid or said["step"] != self._runtime.steps:
            raise InvalidArgumentError(
                f"penstock: the state_dict is of step {said['step']} of run {said['run']}, and this "
                f"is step {self._runtime.steps} of run {self._run.folder}; a run goes on from its "
                "last commit"
            )
        for group, options in zip(self.param_groups, state_dict["param_groups"]):
            group.update(options)

    def close(self) -> None:
        """Frees everything. The module's parameters show NaN from then on."""
        try:
            self._commits.finish()
        finally:
            self._runtime.close()
            self._close()


def _free(engine: Any, run: Run) -> None:
    """Frees what a training has outside of this process's garbage collection, and at its end."""
    try:
        engine.close()
    finally:
        run.close()
