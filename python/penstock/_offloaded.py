"""The base of the optimizers of penstock.optim: what all rules have in common."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Union

import torch

from penstock import _library, _rules, _state
from penstock._amp import loss_scale_of
from penstock._config import ConfigLike, optimizer_config
from penstock._parameters import partition, trained
from penstock._run import Run
from penstock._snapshot import files_of as snapshot_files
from penstock._training import Options, Training
from penstock.errors import InvalidArgumentError, UnavailableError

Path = Union[str, "os.PathLike[str]"]


class OffloadedOptimizer(torch.optim.Optimizer):
    """What all rules have in common; use one of the subclasses.

    The engine is made in the first ``step()``, or when a commit is continued. Until then the
    parameters, their groups and the module may be changed at will.

    Args:
        params: as of :class:`torch.optim.Optimizer`: parameters, named ones, or groups.
        nvme_path: a folder on a drive, or several, in which states live. None: states live in host
            memory, and the state file in ``run`` is written by commits alone.
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
        self._training: Training | None = None
        self._run: Run | None = None
        self._rule = rule
        self.max_norm = max_norm
        self.grad_norm = 0.0
        self.skipped = False
        super().__init__(params, defaults)
        section = _rules.optimizer_section(rule, self.defaults)
        settings, nvme = optimizer_config(section, nvme_path, host_memory, overlap, durable, config)
        folder = None if run is None else os.fspath(run)
        self._options = Options(
            settings, nvme, folder, model, missing_gradients, int(commit_every_steps)
        )
        trained(self.param_groups, model)
        self._begin(resume)

    def _begin(self, resume: str | bool) -> None:
        """Continues the run's commit, if there is one."""
        folder, nvme = self._options.run, self._options.nvme_path
        if folder is None:
            if not nvme:
                Run.open(None, None)  # says what is missing
            if resume is True:
                raise InvalidArgumentError("penstock: resume=True needs run=, the folder of a run")
            return
        self._run = Run.open(folder, nvme)
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
                self._made()
        except BaseException:
            self._leave_run()
            raise

    def _leave_run(self) -> None:
        run, self._run = self._run, None
        if run is not None:
            run.close()

    def _made(self) -> Training:
        """Returns the engine, which is made now if it was not needed before."""
        if self._training is not None:
            return self._training
        if self._run is None:
            self._run = Run.open(self._options.run, self._options.nvme_path)
        try:
            self._training = self._training_from(None)
        except BaseException:
            self._leave_run()
            raise
        self._take_groups(self._training)
        return self._training

    def _take_groups(self, training: Training) -> None:
        """Gives the groups their options of the commit that is continued."""
        if training.continued is None:
            return
        saved = _state.decode(training.continued["groups"])
        for group, options in zip(self.param_groups, saved):
            group.update(options)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Performs a step. A gradient that is not finite changes nothing, with a warning.

        After it :attr:`grad_norm` has the norm before clipping, and :attr:`skipped` says whether
        nothing was changed.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        loss_scale, found_inf = loss_scale_of(self)
        if found_inf:
            self.skipped = True
            return loss
        outcome = self._made().step(self.max_norm, loss_scale)
        if outcome is None:
            return loss
        self.grad_norm, self.skipped = outcome.grad_norm, outcome.skipped
        if outcome.skipped:
            warnings.warn(
                f"penstock: the gradient of step {outcome.step} is not finite (norm "
                f"{outcome.grad_norm}); nothing was updated",
                stacklevel=3,
            )
        return loss

    @property
    def steps(self) -> int:
        """How many steps were made, those of the commit that was continued included."""
        return self._training.calls if self._training is not None else 0

    def plan(self) -> Any:
        """Returns what the engine takes of memory and drives, in bytes, without making it.

        docs/c_api.md has the keys (``penstock_plan``).
        """
        parts = partition(self.param_groups, self._options.tile_elements, self._options.model)
        options = {"folders": self._options.nvme_path or [str(self._options.run)]}
        return _library.plan(self._options.config, parts.model(), options)

    def synchronize(self) -> None:
        """Brings all weights back. For code that reads them outside a forward, with ``model=``."""
        if self._training is not None:
            self._training.synchronize()

    def commit(self) -> int:
        """Makes the state durable as the last step left it; returns :attr:`steps`."""
        training = self._made()
        training.commit()
        return training.calls

    def snapshot(self, folder: Path) -> str:
        """Copies the commit of the last step into a folder that is not there; returns its path.

        A ``state_dict`` with this path under ``["penstock"]["snapshot"]`` finds the copy, whatever
        the run has committed since.
        """
        return self._made().snapshot(os.fspath(folder))

    def attach(self, **things: Any) -> int:
        """Keeps the state of things in commits: schedulers, loaders, scalers, by names.

        If a commit was continued, gives them their states of it, the groups their options, and the
        random number generators theirs. Call it last before the loop.

        Returns:
            :attr:`steps`: where the loop goes on.
        """
        training = self._made()
        training.attach(things)
        self._take_groups(training)
        return training.calls

    def state_dict(self) -> dict[str, Any]:
        """Commits, and returns what finds the commit again: small, whatever the states take."""
        found = super().state_dict()
        found["penstock"] = None
        training = self._training
        if training is not None:
            if training.committed_step != training.engine_step:
                training.commit()
            found["penstock"] = {
                "version": 1,
                "run": str(training.run.folder),
                "uuid": training.uuid,
                "state_paths": list(training.state_paths),
                "step": training.engine_step,
                "identity": training.identity,
            }
        return found

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Opens the commit that :meth:`state_dict` named; parameters get the weights of it."""
        said = state_dict.get("penstock")
        if state_dict.get("state"):
            raise InvalidArgumentError(
                "penstock: this state_dict has states of torch.optim, which cannot be taken over; "
                "begin with new states"
            )
        if said is not None:
            self._continue(said)
        elif self._training is not None and self._training.engine_step > 0:
            raise InvalidArgumentError(
                "penstock: this state_dict was taken before the first step, and the optimizer is at "
                f"step {self._training.engine_step}; make a new optimizer"
            )
        super().load_state_dict({"state": {}, "param_groups": state_dict["param_groups"]})
        if self._training is not None:  # torch has put another list in the place of ours
            self._training.param_groups = self.param_groups

    def _continue(self, said: Mapping[str, Any]) -> None:
        """Goes to a commit, unless this is where the engine is."""
        training = self._training
        if training is not None:
            if (training.uuid, training.engine_step) == (said["uuid"], said["step"]):
                training.synchronize()
                return
            training.close()
            self._training = None
        if self._options.run is None:
            self._leave_run()
            self._options = self._options._replace(run=said["run"])
        try:
            made = self._made_from(said)
        except BaseException:
            self._leave_run()
            raise
        self._training = made

    def _made_from(self, said: Mapping[str, Any]) -> Training:
        """Continues the commit that a state_dict names: the run's last, or a snapshot's."""
        folder, snapshot = self._options.run, said.get("snapshot")
        there = os.path.exists(os.path.join(str(folder), "run.json"))
        files = snapshot_files(snapshot) if snapshot and os.path.isdir(snapshot) else None
        if not there and files is None:
            raise InvalidArgumentError(
                f"penstock: the state is that of run {folder}, which is not there; give run=, where "
                "it is now"
            )
        if self._run is None or self._run.closed:
            self._run = Run.open(folder, self._options.nvme_path)
        if files is None and self._run.uuid != said["uuid"]:
            raise InvalidArgumentError(
                f"penstock: run {folder} has the state {self._run.uuid}, and {said['uuid']} was "
                "saved; the state_dict is older than the state, or of another run"
            )
        made = self._training_from(files)
        if made.engine_step != said["step"]:
            step = made.engine_step
            made.close(bring=False)
            raise InvalidArgumentError(
                f"penstock: the last commit of run {folder} is of step {step}, and step "
                f"{said['step']} was saved; only the last commit can be continued, or a snapshot"
            )
        return made

    def _training_from(self, files: list[str] | None) -> Training:
        assert self._run is not None
        return Training(
            self._options, self._rule, self.defaults, self.param_groups, self._run, files
        )

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
        if getattr(self, "_training", None) is not None:
            raise InvalidArgumentError(
                "penstock: a parameter group was added after the engine was made; add it before the "
                "first step, or make a new optimizer"
            )
        super().add_param_group(param_group)

    def close(self) -> None:
        """Brings all weights back and frees everything. What was not committed is lost."""
        training, self._training = self._training, None
        if training is not None:
            training.close()
        self._leave_run()

    def __del__(self) -> None:
        if getattr(self, "_options", None) is not None:
            self.close()

    def __getstate__(self) -> dict[str, Any]:
        raise UnavailableError(
            "penstock: an optimizer is not pickled or copied, because its engine belongs to this "
            "process; keep its state_dict()"
        )
