"""The same rules in plain memory: training with penstock equals them bit for bit.

Each class takes the same arguments as its namesake in :mod:`penstock` and keeps its states as
tensors. There are no files, threads or hooks. Use it to prove that offloading changes nothing, or
to train without offloading. The arithmetic is the library's own (``penstock_reference_update``).
"""

from __future__ import annotations

import ctypes
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from penstock import _dtypes, _library, _rules
from penstock._amp import loss_scale_of
from penstock._model import Entry
from penstock._parameters import Partition, partition
from penstock.errors import InvalidArgumentError

_BLOCK = 4096


def _dtype(tensor: torch.Tensor) -> int:
    return _dtypes.CODES[tensor.dtype]


def block_sums(gradient: torch.Tensor) -> tuple[list[float], bool]:
    """Returns the sums of squares of a gradient's blocks, and whether it is finite."""
    gradient = _dtypes.plain(gradient)
    count = gradient.numel()
    sums = (ctypes.c_double * (-(-count // _BLOCK)))()
    finite = ctypes.c_int()
    _library.check(
        _library.library().penstock_block_sums(
            gradient.data_ptr(), _dtype(gradient), count, sums, ctypes.byref(finite)
        )
    )
    return list(sums), bool(finite.value)


def gradient_norm(parts: Partition, gradients: Mapping[int, torch.Tensor]) -> tuple[float, bool]:
    """Returns the norm with the engine's bits, and whether all elements are finite.

    Args:
        parts: units and groups in the order of the engine.
        gradients: by the parameter's ``id``.
    """
    total, finite = 0.0, True
    for unit in parts.units:
        for group in parts.groups:
            own = [entry for entry in unit.entries if entry.group == group]
            if not own:
                continue
            flat = [gradients[id(entry.parameter)].reshape(-1) for entry in own]
            sums, all_finite = block_sums(torch.cat(flat))
            finite = finite and all_finite
            for block in sums:  # one after the other: sum() would compensate
                total += block
    return math.sqrt(total), finite


class ReferenceOptimizer(torch.optim.Optimizer):
    """The common part of all rules; use one of the subclasses.

    Args:
        params: as of :class:`torch.optim.Optimizer`.
        rule: the rule.
        defaults: options of parameter groups.
        max_norm: clips the gradient to this norm; 0: does not.
        model: cuts units by the blocks of this module, as the optimizer with ``model=`` does.
        units: cuts units as given: parameters of each, in order. Only the order in which squares
            are added up for the norm depends on the cut.
        missing_gradients: ``"zero"``: a parameter without a gradient has one of zeros.
    """

    _step_supports_amp_scaling = True

    def __init__(
        self,
        params: Any,
        rule: _rules.Rule,
        defaults: dict[str, Any],
        *,
        max_norm: float = 0.0,
        model: torch.nn.Module | None = None,
        units: Sequence[Sequence[torch.nn.Parameter]] | None = None,
        missing_gradients: str = "error",
    ) -> None:
        self._rule = rule
        self._cut = {"model": model, "units": units}
        self._max_norm = max_norm
        self._zero = missing_gradients == "zero"
        self._partition: Partition | None = None
        self._sums: dict[int, torch.Tensor] = {}
        self._updates = 0
        self.grad_norm = 0.0
        self.skipped = False
        super().__init__(params, defaults)
        section = _rules.optimizer_section(rule, self.defaults)
        config = {"optimizer": section, "train_micro_batch_size_per_gpu": 1}
        self._config = json.dumps(config).encode()

    def _parts(self) -> Partition:
        if self._partition is None:
            self._partition = partition(self.param_groups, **self._cut)  # type: ignore[arg-type]
            if self._partition.device.type != "cpu":
                raise InvalidArgumentError(
                    f"penstock: the reference works on the CPU, and parameters are on "
                    f"{self._partition.device}; move the module to the CPU"
                )
        return self._partition

    @torch.no_grad()
    def micro_batch(self) -> None:
        """Takes the gradients of a micro-batch: fp32 sums, in order, which ``step`` rounds once."""
        for entry in self._parts().entries():
            gradient = entry.parameter.grad
            if gradient is None:
                continue
            entry.parameter.grad = None
            key = id(entry.parameter)
            if key in self._sums:
                self._sums[key] += gradient
            else:
                self._sums[key] = gradient.to(torch.float32, copy=True)

    def _gradient(self, entry: Entry) -> torch.Tensor:
        """Returns the step's gradient of a parameter, contiguous and of its dtype."""
        parameter = entry.parameter
        if id(parameter) in self._sums:
            return self._sums[id(parameter)].to(parameter.dtype)
        if parameter.grad is not None:
            return _dtypes.plain(parameter.grad).to(parameter.dtype)
        if not self._zero:
            raise InvalidArgumentError(f"penstock: parameter {entry.name} has no gradient")
        return torch.zeros(parameter.shape, dtype=parameter.dtype)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Performs a step; a gradient that is not finite changes nothing."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        loss_scale, found_inf = loss_scale_of(self)
        parts = self._parts()
        self.skipped = found_inf
        if self._sums:
            self.micro_batch()
        elif found_inf or all(entry.parameter.grad is None for entry in parts.entries()):
            return loss
        gradients = {id(entry.parameter): self._gradient(entry) for entry in parts.entries()}
        self._sums = {}
        norm, finite = gradient_norm(parts, gradients)
        self.grad_norm, self.skipped = norm / loss_scale, not finite or found_inf
        if self.skipped:
            return loss
        self._updates += 1
        scale = _rules.clip_factor(self.grad_norm, self._max_norm) / loss_scale
        for entry in parts.entries():
            self._update(entry, gradients[id(entry.parameter)], scale)
        return loss

    def state_dict(self) -> dict[str, Any]:
        """Returns everything; see :meth:`torch.optim.Optimizer.state_dict`."""
        return {**super().state_dict(), "updates": self._updates}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Takes the result of :meth:`state_dict`. States stay fp32, for parameters of any dtype."""
        super().load_state_dict({**state_dict, "state": {}})
        parameters = [p for group in self.param_groups for p in group["params"]]
        for number, state in state_dict["state"].items():
            self.state[parameters[number]] = {name: t.clone() for name, t in state.items()}
        self._updates = state_dict["updates"]

    def _new_state(self, parameter: torch.Tensor) -> dict[str, torch.Tensor]:
        """Returns the states of a parameter before its first update."""
        initial = float(self.defaults.get("initial_accumulator_value", 0.0))
        state = {
            name: torch.full(parameter.shape, initial, dtype=torch.float32)
            for name in self._rule.moments
        }
        if parameter.dtype == torch.bfloat16:
            state["lo"] = torch.zeros(parameter.shape, dtype=torch.int16)
        if parameter.dtype == torch.float16:
            state["master"] = parameter.detach().float().contiguous()
        return state

    def _update(self, entry: Entry, gradient: torch.Tensor, scale: float) -> None:
        parameter = entry.parameter
        state = self.state[parameter]
        if not state:
            state.update(self._new_state(parameter))
        weight = parameter.data if parameter.is_contiguous() else parameter.data.contiguous()

        def address(name: str) -> int | None:
            return state[name].data_ptr() if name in state else None

        elements = _library.Elements(
            parameter.numel(),
            weight.data_ptr(),
            address("lo"),
            address("master"),
            address("exp_avg"),
            address("exp_avg_sq") or address("sum"),
            gradient.data_ptr(),
            _dtype(parameter),
        )
        group = _rules.scalars(self.param_groups[entry.group.number])
        _library.check(
            _library.library().penstock_reference_update(
                self._config, ctypes.byref(group), self._updates, scale, ctypes.byref(elements)
            )
        )
        if weight.data_ptr() != parameter.data_ptr():
            parameter.data.copy_(weight)


class AdamW(ReferenceOptimizer):
    """:class:`penstock.AdamW` in plain memory."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        **options: Any,
    ) -> None:
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, _rules.ADAMW, defaults, **options)


class Adam(ReferenceOptimizer):
    """:class:`penstock.Adam` in plain memory."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        **options: Any,
    ) -> None:
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, _rules.ADAM, defaults, **options)


class Lion(ReferenceOptimizer):
    """:class:`penstock.Lion` in plain memory."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-4,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
        **options: Any,
    ) -> None:
        defaults = {"lr": lr, "betas": betas, "weight_decay": weight_decay}
        super().__init__(params, _rules.LION, defaults, **options)


class Adagrad(ReferenceOptimizer):
    """:class:`penstock.Adagrad` in plain memory."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-2,
        lr_decay: float = 0.0,
        weight_decay: float = 0.0,
        initial_accumulator_value: float = 0.0,
        eps: float = 1e-10,
        **options: Any,
    ) -> None:
        defaults = {
            "lr": lr,
            "lr_decay": lr_decay,
            "eps": eps,
            "weight_decay": weight_decay,
            "initial_accumulator_value": initial_accumulator_value,
        }
        super().__init__(params, _rules.ADAGRAD, defaults, **options)
