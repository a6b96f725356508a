"""One engine of level 1, with its run folder and the parameters whose states it keeps."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import threading
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from penstock import _cuda, _dtypes, _exit, _library, _overlaps, _ranks, _rules, _state
from penstock._commits import Commits
from penstock._files import snapshot_of
from penstock._forward import ForwardHooks
from penstock._model import Entry, members_of
from penstock._named_commit import NamedCommit
from penstock._parameters import partition
from penstock._run import Run
from penstock._universal_files import Reader
from penstock._weights import Weights
from penstock.errors import InvalidArgumentError, PenstockError, UnavailableError

_NAMED = 5  # parameters that a message lists
_log = logging.getLogger("penstock")


class Options(NamedTuple):
    """What an optimizer was given, but for the parameters and the rule's options."""

    config: dict[str, Any]
    nvme_path: list[str]
    run: str | None
    model: torch.nn.Module | None
    missing_gradients: str
    commit_every_steps: int


class Training:
    """Engine, run and weights of one optimizer; made when they are first needed.

    Args:
        options: of the optimizer.
        rule: its rule.
        defaults: options of the rule for all groups.
        param_groups: the optimizer's own list, which is read at each step.
        run: the run folder, opened.
        snapshot: whose commit is continued, and moved into the run. None: the run's own, if any.
        commit: that is asked for; one of another step is refused.
        begin_with: the states of another training, if it begins with them.
    """

    def __init__(
        self,
        options: Options,
        rule: _rules.Rule,
        defaults: Mapping[str, Any],
        param_groups: list[dict[str, Any]],
        run: Run,
        snapshot: str | None = None,
        commit: NamedCommit | None = None,
        begin_with: Reader | None = None,
    ) -> None:
        _ranks.check_alone()
        _exit.free_nodes_at_exit()
        for number, group in enumerate(param_groups):
            _rules.check_group(group, number, defaults)
        self.options = options
        self.run = run
        self.param_groups = param_groups
        self.partition = partition(param_groups, options.model)
        _overlaps.check((entry.name, entry.parameter) for entry in self.partition.entries())
        identity = _rules.identity(rule, members_of(self.partition.entries()))
        self.identity = identity.whole
        self.calls = 0  # of step() with gradients
        self._ending = False  # the engine was told to end a step, and what came of it is not noted
        self._calls_then = 0  # `calls` once that step has ended
        self._process = os.getpid()
        self._lock = threading.RLock()
        self._hooks: ForwardHooks | None = None
        trained = {id(entry.parameter) for entry in self.partition.entries()}
        self._untrained = [
            p for group in param_groups for p in group["params"] if id(p) not in trained
        ]
        self.engine = _cuda.engine_for(
            self.partition.device,
            options.config,
            self.partition.model(),
            {
                **identity.options("optimizer"),
                "snapshot": snapshot,
                **({} if commit is None else commit.options),
            },
            run.handle,
        )
        try:
            self._begin(commit, begin_with, rule.moments)
        except BaseException:
            self.engine.close()
            raise
        _living.add(self)

    def _begin(
        self, commit: NamedCommit | None, begin_with: Reader | None, moments: Mapping[str, int]
    ) -> None:
        """Fills the engine, or takes over the commit that it continues."""
        described = self.engine.describe()
        continued = None
        for notice in described["notices"]:
            _log.info("penstock: %s", notice)
        for warning in described["warnings"]:
            _log.warning("penstock: %s", warning)
        if described["continued"]:
            continued = self.engine.continued()
            _state.check_text(continued, self.run.folder)
            self.calls = continued["calls"]
            if commit is not None:
                commit.check_step(self.run, self.calls)
        elif begin_with is not None:
            self._fill_from(begin_with, moments)
            described = self.engine.describe()
            self.calls = described["step"]
        else:
            self._fill()
        self.uuid: str = described["uuid"]
        self.state_paths: list[str] = described["state_paths"]
        self.engine_step: int = described["step"]
        self.updates: int = described["optimizer_steps"]
        model = self.options.model
        self.weights = Weights(self.engine, self.partition, model is not None)
        self.commits = Commits(self.engine, self.run, self._sections)
        if continued is not None:
            self.commits.go_on_from(continued)
        if continued is not None or begin_with is not None:
            self.weights.take_all()
        brought = self._brought_by_hooks()
        self._at_once = [
            number
            for number, unit in enumerate(self.partition.units)
            if any(id(entry.parameter) not in brought for entry in unit.entries)
        ]
        if model is not None:
            self._hooks = ForwardHooks(
                model, self.partition, self.bring, lambda: bool(self.weights.pending)
            )

    def _brought_by_hooks(self) -> set[int]:
        """Returns ids of the parameters that may wait for their weights: hooks see all their uses."""
        model = self.options.model
        if model is None:
            return set()
        named = ((entry.name, entry.parameter) for entry in self.partition.entries())
        return {id(p) for p in model.parameters()} - _overlaps.seen_elsewhere(named, model)

    def _fill(self) -> None:
        for number, unit in enumerate(self.partition.units):
            values = [entry.parameter.detach().cpu().contiguous() for entry in unit.entries]
            self.engine.fill(number, [value.data_ptr() for value in values])

    def _fill_from(self, states: Reader, moments: Mapping[str, int]) -> None:
        """Fills the engine with states of another training."""
        names = [entry.name for entry in self.partition.entries()]
        states.check_names(names)
        steps = states.steps(names)
        for number, unit in enumerate(self.partition.units):
            tensors = [(entry.name, entry.parameter, True) for entry in unit.entries]
            states.fill(self.engine, number, tensors, moments)
        self.engine.begin_at(steps, steps)

    def _sections(self) -> dict[str, Any]:
        """Returns what a commit says of the optimizer."""
        groups = _rules.group_options(self.param_groups)
        return {"calls": self.calls, "groups": groups}

    @contextlib.contextmanager
    def guard(self) -> Iterator[None]:
        """Holds the lock, in the process that made this. A child of a fork is refused."""
        if os.getpid() != self._process:
            raise UnavailableError(
                "penstock: the optimizer belongs to the process that made it, and this is a fork of "
                "it; use it there, or make another one here"
            )
        with self._lock:
            self._settle()
            yield

    def step(
        self, max_norm: float, loss_scale: float, loss: float | None
    ) -> _library.Outcome | None:
        """Gives the engine the gradients and ends the step; None if there are no gradients."""
        with self.guard():
            self.weights.bring_all()
            self.weights.check_unchanged()
            gradients = self._gradients()
            if gradients is None:
                return None
            groups = [_rules.scalars(self.param_groups[g.number]) for g in self.partition.groups]
            return self._end_step(
                gradients, loss, lambda: self.engine.end_step(groups, max_norm, loss_scale)
            )

    def skip_step(self, loss_scale: float, loss: float | None) -> _library.Outcome:
        """Ends a step whose gradients a scaler has found not finite."""
        with self.guard():
            lr = float(self.param_groups[0]["lr"])
            return self._end_step((), loss, lambda: self.engine.skip_step(lr, loss_scale))

    def _note_end(self, loss: float | None) -> None:
        self.commits.note_loss(loss)
        every = self.options.commit_every_steps
        if every > 0 and self.calls % every == 0:
            self.commits.take_soon()

    def _end_step(
        self,
        gradients: Sequence[tuple[Entry, torch.Tensor | None]],
        loss: float | None,
        end: Callable[[], _library.Outcome],
    ) -> _library.Outcome:
        self.commits.begin_due()
        self.commits.open_step = True
        try:
            if loss is not None:
                self.engine.report_loss(loss)
            for entry, gradient in gradients:
                address = None if gradient is None else gradient.data_ptr()
                dtype = entry.parameter.dtype if gradient is None else gradient.dtype
                self.engine.gradient(entry.unit, entry.tensor, address, _dtypes.CODES[dtype])
            self.commits.finish()
            self._calls_then = self.calls + 1
            self._ending = True
            outcome = end()
            self._settle()
        except BaseException:
            with contextlib.suppress(PenstockError):
                self._settle()
                self.commits.close_step()
            raise
        self._note_end(loss)
        return outcome

    def _settle(self) -> None:
        """Notes a step that has ended, and brings the weights that no hook brings.

        An interrupt takes effect only afterwards: the caller would go on with old weights.
        """
        interrupt = None
        while self._ending or not self.weights.pending.isdisjoint(self._at_once):
            try:
                self._follow_step()
                self.weights.bring_all(self._at_once)
            except KeyboardInterrupt as caught:
                interrupt = caught
        if interrupt is not None:
            raise interrupt

    def _follow_step(self) -> None:
        """Notes whether the engine has ended the step, which an interrupt may have hidden.

        After an interrupt within it, it is called again, and comes to the same.
        """
        if not self._ending:
            return
        described = self.engine.describe()
        if described["step"] != self.engine_step:
            self.commits.open_step = False
            if described["optimizer_steps"] != self.updates:
                self.weights.let_go()
                self.updates = described["optimizer_steps"]
            self.calls = self._calls_then
            self.engine_step = described["step"]
        self._ending = False

    @property
    def steps(self) -> int:
        """Counts the calls of step() with gradients, also behind an interrupt."""
        if self._ending:
            with self.guard():
                pass
        return self.calls

    def _gradients(self) -> list[tuple[Entry, torch.Tensor | None]] | None:
        """Returns the gradients, contiguous; None if there are none at all."""
        found: list[tuple[Entry, torch.Tensor | None]] = []
        missing: list[str] = []
        for entry in self.partition.entries():
            gradient = entry.parameter.grad
            if gradient is None:
                missing.append(entry.name)
            elif gradient.layout != torch.strided or gradient.dtype not in _dtypes.NAMES:
                raise InvalidArgumentError(
                    f"penstock: the gradient of {entry.name} is {gradient.layout} of "
                    f"{gradient.dtype}; dense ones of fp32, bf16 and fp16 are taken"
                )
            found.append((entry, None if gradient is None else gradient.detach().contiguous()))
        if any(p.grad is not None for p in self._untrained):
            raise InvalidArgumentError(
                "penstock: a parameter has a gradient that needed none when the optimizer began; "
                "make a new optimizer after requires_grad_(True)"
            )
        if len(missing) == len(found):
            return None
        if missing and self.options.missing_gradients != "zero":
            more = f" and {len(missing) - _NAMED} more" if len(missing) > _NAMED else ""
            raise InvalidArgumentError(
                f"penstock: no gradient for {', '.join(missing[:_NAMED])}{more}; torch would leave "
                "such parameters as they are, and a tile has several: freeze them before the first "
                'step (requires_grad_(False)), or give missing_gradients="zero"'
            )
        return found

    def bring(self, units: Iterable[int], kind: int) -> None:
        """Brings units that are pending: what hooks call."""
        with self.guard():
            for unit in units:
                if unit not in self.weights.pending:
                    continue
                self.commits.begin_due()
                self.commits.open_step |= kind == _library.FORWARD
                self.weights.bring(unit, kind)

    def synchronize(self) -> None:
        """Brings all that is pending."""
        with self.guard():
            self.weights.bring_all()

    def commit(self) -> None:
        """Commits the state as the last step left it."""
        with self.guard():
            self.commits.commit()

    def changed(self) -> str | None:
        """Returns the name of a parameter whose weights are not the engine's, if there is one."""
        with self.guard():
            return self.weights.changed()

    def is_as_committed(self, step: int) -> bool:
        """Returns whether the last commit is of ``step``, and nothing has changed since.

        Brings all weights.
        """
        with self.guard():
            self.weights.bring_all()
            return self.durable_calls() == self.calls == step and self.weights.changed() is None

    def snapshot(self, folder: str | os.PathLike[str]) -> str:
        """Copies the last commit, which is one of the last step."""
        place = snapshot_of(folder)
        with self.guard():
            if self.durable_calls() != self.calls:
                self.commit()
            return self.engine.snapshot(place)

    def attach(self, things: Mapping[str, Any]) -> None:
        """Keeps things in commits, and gives them the state of the one that was continued."""
        with self.guard():
            self.commits.attach(things, self.guard)

    def read(self, entry: Entry, kind: int) -> torch.Tensor:
        """Returns one state of a parameter, fp32."""
        with self.guard():
            self.commits.close_step()
            state = torch.empty(entry.parameter.shape, dtype=torch.float32)
            self.engine.read(entry.unit, entry.tensor, kind, 0, state.numel(), state.data_ptr())
            return state

    def durable_calls(self) -> int | None:
        """Returns the step of the last commit, once what was begun is durable; None without one."""
        with self.guard():
            self.commits.finish()
            return self.commits.calls

    def close(self, bring: bool = True, give_up: bool = False) -> None:
        """Frees everything, after parameters have their weights. A fork's child does nothing.

        Args:
            give_up: whether a commit that is due is not wanted any more.
        """
        if os.getpid() != self._process or self not in _living:
            return
        with self._lock:
            _living.discard(self)
            with contextlib.ExitStack() as ending:
                ending.callback(self.run.close)
                ending.callback(self.engine.close)
                # One that was begun counts, also if what is done before it fails.
                ending.callback(self.commits.finish)
                if self._hooks is not None:
                    ending.callback(self._hooks.remove)
                self._follow_step()
                if bring:
                    self.weights.bring_all()
                if give_up:
                    self.commits.drop_due()
                self.commits.ending.end()


_living: weakref.WeakSet[Training] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """Ends what is alive when the process ends, so that files that no commit names are removed."""
    for training in list(_living):
        try:
            training.close(bring=False)
        except PenstockError as error:
            warnings.warn(str(error), stacklevel=1)
