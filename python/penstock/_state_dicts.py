"""``state_dict()`` of a module whose weights are elsewhere: returns the weights, not the NaN shown.

Units are read one after the other, so that only one unit is in memory besides the dictionary.
"""

from __future__ import annotations

import contextlib
import functools
import weakref
from typing import Any

import torch

from penstock._guards import link_of
from penstock._hooks import Hooks
from penstock._storage import Unit


class _Copies:
    """The weights that one ``state_dict()`` has read."""

    def __init__(self, step: int) -> None:
        self.step = step
        self.tensors: dict[int, torch.Tensor] = {}  # tied parameters are one tensor
        self._unit: Unit | None = None
        self._values: list[torch.Tensor] = []

    def get(self, hooks: Hooks, unit: Unit, parameter: torch.Tensor) -> torch.Tensor:
        if id(parameter) not in self.tensors:
            if self._unit is not unit:
                memory = hooks.runtime.read(unit)
                self._values = unit.tensors_in(memory)
                self._unit = unit
            for entry, value in zip(unit.entries, self._values):
                if entry.parameter is parameter:
                    self.tensors[id(parameter)] = value.clone()
        return self.tensors[id(parameter)]


class StateDicts:
    """The hooks of one training; keeps the weights that the current ``state_dict()`` has read."""

    def __init__(self, hooks: Hooks) -> None:
        self._hooks = hooks
        self._of: weakref.ref[Any] | None = None
        self._copies = _Copies(0)

    def _begin(self, state: Any) -> None:
        step = self._hooks.runtime.steps
        if self._of is not None and self._of() is state and self._copies.step == step:
            return
        self._end()
        with contextlib.suppress(TypeError):  # a plain dict: tied weights are copied twice
            self._of = weakref.ref(state, lambda _: self._end())
        self._copies = _Copies(step)

    def _end(self) -> None:
        self._of = None
        self._copies = _Copies(0)

    def fill(self, module: torch.nn.Module, state: Any, prefix: str, metadata: Any) -> None:
        """Puts the weights of a module's own parameters into its ``state_dict()``."""
        if not self._hooks.runtime.begun:
            return
        self._begin(state)
        for name, parameter in module._parameters.items():
            link = link_of(parameter) if parameter is not None else None
            if parameter is None or link is None or link.unit.gathered:
                continue  # of a gathered one the dictionary has what is shown
            if prefix + name in state:
                state[prefix + name] = self._copies.get(self._hooks, link.unit, parameter)
        if prefix == "":
            self._end()


def install(hooks: Hooks) -> None:
    """Makes ``state_dict()`` of the module and its submodules return current weights."""
    dicts = StateDicts(hooks)
    for module in hooks.root.modules():
        if next(module.parameters(), None) is not None:
            hooks.handles.append(
                module.register_state_dict_post_hook(functools.partial(StateDicts.fill, dicts))
            )
