"""The base of the optimizers of penstock.optim: what all rules have in common."""

from __future__ import annotations

import os
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypedDict, Union

import torch

from penstock import _cuda, _library, _overlaps, _ranks, _rules, _state
from penstock._amp import loss_scale_of
from penstock._config import ConfigLike, optimizer_config, read_config, without_monitors
from penstock._files import path_of
from penstock._held import Held
from penstock._losses import Losses, not_finite
from penstock._named_commit import NamedCommit, said_of
from penstock._parameters import partition, trained
from penstock._rows import Rows
from penstock._torch_state import Elsewhere, name_commit, options_of
from penstock._training import Options, Training
from penstock._universal_files import Reader
from penstock.errors import InvalidArgumentError, UnavailableError

Path = Union[str, "os.PathLike[str]"]


class OffloadOptions(TypedDict, total=False):
    """Keywords of every optimizer; :class:`OffloadedOptimizer` says what they are."""

    nvme_path: None | Path | Sequence[Path]
    home: str | None
    run: Path | None
    host_memory: None | int | str
    model: torch.nn.Module | None
    max_norm: float
    overlap: bool
    durable: bool
    commit_every_steps: int
    missing_gradients: str
    config: ConfigLike
    resume: str | bool


class OffloadedOptimizer(torch.optim.Optimizer):
    """What all rules have in common; use one of the subclasses.

    The engine is made in the first ``step()``, or when a commit is continued. Until then the
    parameters, their groups and the module may be changed at will.

    Args:
        params: as of :class:`torch.optim.Optimizer`: parameters, named ones, or groups.
        nvme_path: a folder on a drive, or several, in which states live. None: states live in host
            memory, and the state file in ``run`` is written by commits alone.
        home: ``"device"``: states live on the device of the parameters, which a CUDA device needs
            memory for. None: where ``nvme_path`` says.
        run: a folder for this training. If it has a commit, that is continued, with the weights of
            the commit. None: the run has a folder of its own in ``nvme_path``.
        host_memory: the most that is taken of host memory, ``"8GiB"`` or bytes. None: three
            quarters of what is available.
        model: the module. New weights are brought under its next forward; without it ``step()``
            returns when all are back.
        max_norm: clips the gradient to this norm, in the update's own pass; 0: does not.
        overlap: updates run on while the caller goes on.
        durable: False: half the space on the drive, no safety against a crash.
        commit_every_steps: commits by itself so often; 0: does not.
        missing_gradients: ``"error"``: a step in which some parameters have no gradient is refused;
            ``"zero"``: they have one of zeros.
        config: a DeepSpeed configuration (file or mapping) for all else (docs/config.md).
        resume: ``"auto"``: continues the commit of ``run``, if there is one; True: there has to be
            one; False: there may not be one.
    """

    _step_supports_amp_scaling = True

    def __init__(
        self,
        params: Any,
        rule: _rules.Rule,
        defaults: dict[str, Any],
        *,
        nvme_path: None | Path | Sequence[Path] = None,
        home: str | None = None,
        run: Path | None = None,
        host_memory: None | int | str = None,
        model: torch.nn.Module | None = None,
        max_norm: float = 0.0,
        overlap: bool = True,
        durable: bool = True,
        commit_every_steps: int = 0,
        missing_gradients: str = "error",
        config: ConfigLike = None,
        resume: str | bool = "auto",
    ) -> None:
        if missing_gradients not in ("error", "zero") or resume not in ("auto", True, False):
            raise InvalidArgumentError(
                f"penstock: missing_gradients is {missing_gradients!r} and resume {resume!r}; the "
                'first is "error" or "zero", the second "auto", True or False'
            )
        _ranks.check_alone()
        self._rule = rule
        self.max_norm = max_norm
        self.grad_norm = 0.0
        self.skipped = False
        self._losses = Losses(lambda: self.steps)
        super().__init__(params, defaults)
        self.state = Elsewhere()
        section = _rules.optimizer_section(rule, self.defaults)
        given, monitors = without_monitors(read_config(config))
        settings, nvme = optimizer_config(
            section, nvme_path, host_memory, overlap, durable, given, home
        )
        self.rows = Rows(settings, monitors, self._losses)
        folder = None if run is None else path_of(run, "run")
        every = int(commit_every_steps)
        options = Options(settings, nvme, folder, model, missing_gradients, every)
        found = trained(self.param_groups, model)
        _overlaps.check_pairs((one.name, one.parameter) for one in found)
        self._held = Held(options, rule, self.defaults)
        weakref.finalize(self, self._held.close).atexit = False  # _training has an end of its own
        self._held.begin(resume, self.param_groups)
        if self._training is not None:
            self._take_groups(self._training)

    @property
    def _training(self) -> Training | None:
        return self._held.training

    def _made(self) -> Training:
        """Returns the engine, which is made now if it was not needed before."""
        return self._held.made(self.param_groups)

    def _take_groups(self, training: Training) -> None:
        """Gives the groups their options of the commit that is continued."""
        continued = training.commits.continued
        if continued is None:
            return
        for group, options in zip(self.param_groups, _state.decode(continued["groups"])):
            group.update(options)

    def report_loss(self, loss: Any) -> None:
        """Reports the loss of the step under way, before :meth:`step`: a number or a tensor.

        Call it once for each micro-batch, in each step or in none. See :meth:`step`.
        """
        self._losses.report(loss)

    def step(self, closure: Callable[[], Any] | None = None, *, loss: Any = None) -> Any:
        """Performs a step. A gradient or a loss that is not finite changes nothing, with a warning.

        Args:
            closure: computes loss and gradients anew, as in torch.
            loss: the loss of the step, if :meth:`report_loss` has not been given it. A commit is
                confirmed by the next finite loss. After one that is not, no commit takes the place
                of the last one that is confirmed; after two in a row the training ends, and the
                commit in doubt is taken back.

        After it :attr:`grad_norm` has the norm before clipping, and :attr:`skipped` says whether
        nothing was changed.
        """
        computed = None
        if closure is not None:
            with torch.enable_grad():
                computed = closure()
        self.rows.note(computed)
        with self._losses.of_step(loss):
            self._step()
        return computed

    def _step(self) -> None:
        reported = self._losses.mean()
        loss_scale, found_inf = loss_scale_of(self)
        training = self._made()
        loss_of_row = self.rows.loss(reported, training.engine)
        outcome = (
            training.skip_step(loss_scale, reported)
            if found_inf
            else training.step(self.max_norm, loss_scale, reported)
        )
        if outcome is None:
            self._losses.clear()
            return
        self._losses.end_step(reported)
        self.grad_norm, self.skipped = outcome.grad_norm, outcome.skipped
        if outcome.skipped and not found_inf:  # a scaler knows
            warnings.warn(
                f"penstock: {not_finite(reported, outcome)}; nothing was updated",
                stacklevel=4,
            )
        self.rows.end_step(outcome.step, self, loss_of_row)

    @property
    def steps(self) -> int:
        """How many steps were made, those of the commit that was continued included."""
        return self._training.steps if self._training is not None else 0

    def plan(self) -> Any:
        """Returns what the engine takes of memory and drives, in bytes, without making it.

        docs/c_api.md has the keys (``penstock_plan``).
        """
        parts = partition(self.param_groups, self._held.options.model)
        options = {
            "folders": self._held.options.nvme_path or [str(self._held.options.run)],
            **_cuda.options_for(parts.device),
        }
        return _library.plan(self._held.options.config, parts.model(), options)

    def synchronize(self) -> None:
        """Brings all weights back. For code that reads them outside a forward, with ``model=``."""
        if self._training is not None:
            self._training.synchronize()

    def commit(self) -> int:
        """Makes the state durable as the last step left it; returns :attr:`steps`."""
        training = self._made()
        _warn_of_changes(training)
        training.commit()
        return training.calls

    def snapshot(self, folder: Path) -> str:
        """Copies the commit of the last step; returns the path of the copy.

        Args:
            folder: a path that has a slash, where nothing is: the copy is a run of its own. Else a
                name: the copy is in ``snapshots`` of the run.

        A ``state_dict`` with this path under ``["penstock"]["snapshot"]`` finds the copy, whatever
        the run has committed since.
        """
        training = self._made()
        _warn_of_changes(training)
        return training.snapshot(folder)

    def attach(self, **things: Any) -> int:
        """Keeps the state of things in commits: schedulers, loaders, scalers, by names.

        If a commit was continued, gives them their states of it, the groups their options, and the
        random number generators theirs. Call it last before the loop.

        Returns:
            :attr:`steps`: where the loop goes on.
        """
        training = self._made()
        training.attach(things)
        self._attached = training.commits.let_hold()
        self._take_groups(training)
        return training.calls

    def state_dict(self) -> dict[str, Any]:
        """Commits, and returns what finds the commit again: small, whatever the states take."""
        self._held.check()
        found = super().state_dict()
        name_commit(found, None)
        training = self._training
        if training is not None:
            _warn_of_changes(training)
            training.commit()
            said = {
                "version": 2,
                "run": str(training.run.folder),
                "uuid": training.uuid,
                "state_paths": list(training.state_paths),
                "step": training.calls,
                "engine_step": training.engine_step,
                "identity": training.identity,
            }
            name_commit(found, said)
        return found

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Opens the commit that :meth:`state_dict` named; parameters get the weights of it."""
        said = said_of(state_dict)
        if state_dict.get("state"):
            raise InvalidArgumentError(
                "penstock: this state_dict has states of torch.optim, which cannot be taken over; "
                "begin with new states"
            )
        lengths = [
            [len(group["params"]) for group in groups]
            for groups in (state_dict["param_groups"], self.param_groups)
        ]
        if lengths[0] != lengths[1]:
            raise InvalidArgumentError(
                f"penstock: the groups of the state_dict have {lengths[0]} parameters, and those of "
                f"the optimizer {lengths[1]}; make the same groups"
            )
        if said is not None:
            self._held.go_to(NamedCommit(said), self.param_groups)
        elif self._training is not None and self._training.calls > 0:
            raise InvalidArgumentError(
                "penstock: this state_dict was taken before the first step, and the optimizer is at "
                f"step {self._training.calls}; make a new optimizer"
            )
        groups = [
            {**options_of(group), "params": group["params"]} for group in state_dict["param_groups"]
        ]
        super().load_state_dict({"state": {}, "param_groups": groups})
        self.state = Elsewhere()
        if self._training is not None:  # torch has put another list in the place of ours
            self._training.param_groups = self.param_groups
            self._attached = self._training.commits.let_hold()

    def begin_with(self, states: Reader) -> None:
        """Begins with the states of another training: what penstock.universal.load calls."""
        self._held.begin_with(states, self.param_groups)

    @property
    def updates(self) -> int:
        """How many steps were made that were not skipped: t of the rule."""
        return self._training.updates if self._training is not None else 0

    def states(self) -> Iterator[tuple[str, torch.nn.Parameter, dict[str, torch.Tensor]]]:
        """Yields name, parameter and states of each, fp32, one after the other."""
        training = self._made()
        for entry in training.partition.entries():
            kinds = {"master": _library.MASTER, **self._rule.moments}
            states = {name: training.read(entry, kind) for name, kind in kinds.items()}
            yield entry.name, entry.parameter, states

    def full_state_dict(self) -> dict[str, Any]:
        """Returns all states in the layout of torch.optim, for leaving us: as large as they are.

        ``torch.optim``'s class of the same name takes it by ``load_state_dict``. :meth:`states`
        gives one parameter at a time.
        """
        numbers: dict[int, int] = {}
        for group in self.param_groups:
            for parameter in group["params"]:
                numbers[id(parameter)] = len(numbers)
        result = super().state_dict()
        training = self._made()
        for _, parameter, states in self.states():
            kept = {name: states[name] for name in self._rule.moments}
            step = torch.tensor(float(training.updates))
            result["state"][numbers[id(parameter)]] = {"step": step, **kept}
        torch_class = getattr(torch.optim, self._rule.name, None)
        if torch_class is not None:
            defaults = torch_class([torch.zeros(1)]).defaults
            for group in result["param_groups"]:
                for key, value in defaults.items():
                    group.setdefault(key, value)
        return result

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds a group, before the first step."""
        held = getattr(self, "_held", None)
        if held is not None and held.training is not None:
            raise InvalidArgumentError(
                "penstock: a parameter group was added after the engine was made; add it before the "
                "first step, or make a new optimizer"
            )
        super().add_param_group(param_group)

    def close(self) -> None:
        """Brings all weights back and frees everything. What was not committed is lost."""
        self._held.close()

    def __getstate__(self) -> dict[str, Any]:
        raise UnavailableError(
            "penstock: an optimizer is not pickled or copied, because its engine belongs to this "
            "process; keep its state_dict()"
        )


def _warn_of_changes(training: Training) -> None:
    """Says, at the line that has called a method, that a commit will not have a change."""
    changed = training.changed()
    if changed is not None:
        warnings.warn(
            f"penstock: the weights of parameter {changed} were changed from outside, and the "
            "commit has those of the last step",
            stacklevel=3,
        )
