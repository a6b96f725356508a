"""A stand-in for ``penstock._library.Engine`` in plain memory, which checks how it is called.

It has the engine's methods, a simple Adam, and no files. Where the engine trusts its caller, this
one does not: a use without an address needs weights that were given in this step, unless they
cannot have changed.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from penstock import _library

_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
_BY_CODE = {_library.DTYPES[name]: dtype for name, dtype in _DTYPES.items()}
_ALIGNMENT = 64


def adam(
    master: torch.Tensor, moments: list[torch.Tensor], gradient: torch.Tensor, t: int, group: Any
) -> None:
    """The rule, in operations that round alike however elements lie in memory."""
    first, second = moments
    first.mul_(group.beta1).add_(gradient * (1 - group.beta1))
    second.mul_(group.beta2).add_(gradient * gradient * (1 - group.beta2))
    root = (second / (1 - group.beta2**t)).sqrt() + group.eps
    master.mul_(1 - group.lr * group.weight_decay)
    master.sub_(first / (1 - group.beta1**t) / root * group.lr)


def _memory_at(address: int, tensor: torch.Tensor) -> torch.Tensor:
    """Returns memory of somebody else as a tensor like another."""
    array = (ctypes.c_char * tensor.nbytes).from_address(address)
    return torch.frombuffer(array, dtype=tensor.dtype).view(tensor.shape)


class _Tensor:
    def __init__(self, said: Mapping[str, Any], groups: Sequence[Mapping[str, Any]]) -> None:
        group = groups[said["group"]]
        self.name: str = said["name"]
        self.group: int = said["group"]
        self.trained = not group.get("frozen", False)
        self.weight = torch.zeros(said["shape"], dtype=_DTYPES[group["dtype"]])
        self.master = torch.zeros(said["shape"])
        self.moments = [torch.zeros(said["shape"]) for _ in range(2)]
        self.sum: torch.Tensor | None = None
        self.count = 0
        self.offset = 0


class MemoryEngine:
    """See the file. Raises AssertionError where its caller breaks the protocol."""

    def __init__(
        self,
        config: Mapping[str, Any],
        model: Mapping[str, Any],
        options: Mapping[str, Any],
        run: Any = None,
    ) -> None:
        json.dumps([config, model, options])
        zero = config.get("zero_optimization", {})
        self._on_device = "offload_param" not in zero
        self._slots = options.get("slots", 2)
        self._micro_batches = config.get("gradient_accumulation_steps", 1)
        self._units = [[_Tensor(t, model["groups"]) for t in u["tensors"]] for u in model["units"]]
        self._groups = sum(not group.get("frozen", False) for group in model["groups"])
        for unit in self._units:
            for before, tensor in zip(unit, unit[1:]):
                end = before.offset + before.weight.nbytes
                tensor.offset = -(-end // _ALIGNMENT) * _ALIGNMENT
        self._filled: set[int] = set()
        self._given: set[int] = set()  # units whose weights the caller has since the step began
        self._current: set[int] = set()  # the same, since weights changed
        self._norm: float | None = None
        self._steps = 0
        self._order: list[int] = []
        self._planned: list[int] = []
        self._late = 0
        self._closed = False

    def _check(self) -> None:
        assert not self._closed, "the engine was closed"
        assert len(self._filled) == len(self._units), "units were not filled"

    def close(self) -> None:
        self._closed = True

    @property
    def closed(self) -> bool:
        return self._closed

    def describe(self) -> Any:
        units = [
            {
                "bytes": unit[-1].offset + unit[-1].weight.nbytes,
                "filled": number in self._filled,
                "tensors": [
                    {"offset": t.offset, "bytes": t.weight.nbytes, "trained": t.trained}
                    for t in unit
                ],
            }
            for number, unit in enumerate(self._units)
        ]
        step = {"step": self._steps, "optimizer_steps": self._steps, "slots": self._slots}
        state = {"uuid": "memory", "state_paths": [], "continued": False, "moved": False}
        state["commit"] = None
        sums = {"micro_batches": self._micro_batches, "sums_on_device": False}
        return {**step, **state, **sums, "notices": [], "warnings": [], "units": units}

    def counters(self) -> Any:
        return {"late_uses": self._late}

    def fill(self, unit: int, addresses: Sequence[int]) -> None:
        assert not self._closed and unit not in self._filled, f"unit {unit} is filled twice"
        for tensor, address in zip(self._units[unit], addresses):
            tensor.weight.copy_(_memory_at(address, tensor.weight))
            tensor.master.copy_(tensor.weight)
        self._filled.add(unit)

    # What an engine without a device has for the sake of one with it.

    def ready(self) -> None:
        pass

    def order(self) -> None:
        pass

    def copying(self) -> contextlib.AbstractContextManager[Any]:
        return contextlib.nullcontext()

    def keep(self, values: Any) -> None:
        pass

    def note_idle(self, memories: Iterable[Any]) -> None:
        pass

    def use(self, unit: int, kind: int, to: int | None) -> None:
        self._check()
        if to is None:
            frozen = not any(tensor.trained for tensor in self._units[unit])
            keeps = frozen or self._on_device
            assert unit in (self._current if keeps else self._given), f"unit {unit} was not brought"
        else:
            for tensor in self._units[unit]:
                _memory_at(to + tensor.offset, tensor.weight).copy_(tensor.weight)
            self._current.add(unit)
        if kind != _library.ASIDE:
            self._given.add(unit)
            expected = self._planned[len(self._order) :][:1]
            self._late += self._steps > 0 and expected != [unit]
            self._order.append(unit)

    def copy_to_host(self, unit: int, to: int) -> None:
        self._check()
        for tensor in self._units[unit]:
            _memory_at(to + tensor.offset, tensor.weight).copy_(tensor.weight)

    def gradient(self, unit: int, tensor: int, address: int | None, dtype: int) -> None:
        self._check()
        to = self._units[unit][tensor]
        assert to.trained, f"{to.name} is frozen"
        assert self._norm is None, "a gradient after the norm"
        assert to.count < self._micro_batches, f"{to.name} got {to.count + 1} gradients"
        assert _BY_CODE[dtype] == to.weight.dtype
        values = torch.zeros_like(to.weight) if address is None else _memory_at(address, to.weight)
        to.sum = values.float().clone() if to.sum is None else to.sum + values.float()
        to.count += 1

    def norm(self) -> tuple[float, bool]:
        self._check()
        if self._norm is None:
            total = 0.0
            for tensor in self._trained():
                assert tensor.sum is not None, f"{tensor.name} has no gradient"
                tensor.sum = tensor.sum.to(tensor.weight.dtype).float()
                total += float(tensor.sum.double().square().sum())
            self._norm = math.sqrt(total)
        return self._norm, math.isfinite(self._norm)

    def _trained(self) -> list[_Tensor]:
        return [tensor for unit in self._units for tensor in unit if tensor.trained]

    def end_step(
        self, groups: Sequence[Any], max_norm: float = 0.0, loss_scale: float = 1.0
    ) -> _library.Outcome:
        norm, finite = self.norm()
        assert len(groups) == self._groups and max_norm == 0 and loss_scale == 1
        self._steps += 1
        for tensor in self._trained() if finite else ():
            assert tensor.sum is not None
            adam(tensor.master, tensor.moments, tensor.sum, self._steps, groups[tensor.group])
            tensor.weight.copy_(tensor.master)
        if finite:
            self._current = {i for i in self._current if not any(t.trained for t in self._units[i])}
        self._planned = self._order
        self._clear()
        return _library.Outcome(self._steps, self._steps, norm, not finite)

    def _clear(self) -> None:
        self._order, self._norm = [], None
        self._given.clear()
        for tensor in self._trained():
            tensor.sum, tensor.count = None, 0

    def drop_step(self) -> None:
        self._check()
        self._clear()

    def drain(self) -> None:
        self._check()
