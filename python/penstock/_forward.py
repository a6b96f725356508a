"""Hooks that bring new weights during the next forward, for an optimizer with ``model=``.

A module that owns parameters waits, before its forward, for their units only. Weights that a module
uses although another one owns them are learned in the first forwards
(``torch.nn.MultiheadAttention`` uses those of its ``out_proj``, which is never called): they are
brought when the model is called.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from penstock import _compiler, _library
from penstock._model import owners
from penstock._parameters import Partition
from penstock._watch import Watch

_LEARNED_IN = 2  # forwards

Bring = Callable[[Iterable[int], int], None]


def _nothing(*_: Any, **__: Any) -> None:
    """Replaces a hook in a copy of the module, to which the optimizer does not belong."""


def _no_hook() -> Callable[..., None]:
    return _nothing


class _Hook:
    """A hook of a module; copies and pickles of the module get none."""

    def __init__(self, call: Callable[..., None]) -> None:
        # A compiled module around this one would trace into the engine's bookkeeping.
        self._call = torch.compiler.disable(call)

    def __call__(self, *arguments: Any, **_: Any) -> None:
        self._call(*arguments)

    def __deepcopy__(self, memo: Any) -> Callable[..., None]:
        return _nothing

    def __reduce__(self) -> Any:
        return _no_hook, ()


class _EagerUses(Watch):
    """Sees all calls of torch functions, except while compiling."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch.compiler.is_compiling():  # compiled parts are eager again once nothing is learned
            return func(*args, **(kwargs or {}))
        self.look(func, args, kwargs)
        return func(*args, **(kwargs or {}))


class ForwardHooks:
    """The hooks of one optimizer on one module.

    Args:
        model: the module.
        partition: the units.
        bring: gives the parameters of units their new weights, for a kind of use.
        pending: whether any unit is pending; quick.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        partition: Partition,
        bring: Bring,
        pending: Callable[[], bool],
    ) -> None:
        self._bring = bring
        self._pending = pending
        self._unit_of = {id(entry.parameter): entry.unit for entry in partition.entries()}
        self._outside: set[int] = set()  # units that are used outside the modules that own them
        self._reached: set[int] = set()  # units that hooks have seen in this forward
        self._watch: _EagerUses | None = None
        self._forwards = 0
        self._handles: list[Any] = []
        whole = {module for _, module, block in owners(model, sequential=False) if block}
        for module in model.modules():
            own = module.parameters(recurse=module in whole)
            units = sorted({self._unit_of[id(p)] for p in own if id(p) in self._unit_of})
            if units:
                self._hook(module, units)
        root = [
            model.register_forward_pre_hook(_Hook(self._begin), prepend=True),
            model.register_forward_hook(_Hook(self._end), always_call=True),
        ]
        self._handles += root
        _compiler.forget()

    def _hook(self, module: torch.nn.Module, units: list[int]) -> None:
        def forward(*_: Any) -> None:
            if self._watch is not None:
                self._reached.update(units)
            if self._pending():
                self._bring(units, self._kind())

        def aside(*_: Any) -> None:
            if self._pending():
                self._bring(units, _library.ASIDE)

        self._handles += [
            module.register_forward_pre_hook(_Hook(forward), prepend=True),
            module.register_state_dict_pre_hook(_Hook(aside)),
            module.register_load_state_dict_pre_hook(_Hook(aside)),
        ]

    @staticmethod
    def _kind() -> int:
        """Returns the kind of use: forwards without gradients do not belong to the planned step."""
        return _library.FORWARD if torch.is_grad_enabled() else _library.ASIDE

    def _begin(self, *_: Any) -> None:
        """Before the model's forward."""
        if self._outside and self._pending():
            self._bring(sorted(self._outside), self._kind())
        self._stop_watching()  # a KeyboardInterrupt has ended the last forward without _end
        if self._forwards < _LEARNED_IN:
            self._reached.clear()
            self._watch = _EagerUses(self._unit_of, self._see)
            self._watch.__enter__()  # type: ignore[no-untyped-call]

    def _end(self, *_: Any) -> None:
        """After the model's forward, unless it was interrupted."""
        if self._watch is not None:
            self._forwards += 1
        self._stop_watching()

    def _stop_watching(self) -> None:
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.__exit__(None, None, None)  # type: ignore[no-untyped-call]

    def _see(self, unit: int) -> None:
        if unit in self._reached:
            return
        self._reached.add(unit)
        self._outside.add(unit)
        if self._pending():
            self._bring([unit], self._kind())

    def remove(self) -> None:
        """Removes all hooks."""
        self._stop_watching()
        for handle in self._handles:
            handle.remove()
        self._handles = []
