"""Finds weights that a function uses outside of the forward of their own module.

Within the root's forward, a mode sees every function of torch and its arguments. It is a ``with``
around the forward, so that an interrupt ends it as well.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from penstock._hooks import Hooks, backward_task, unit_of
from penstock._storage import Unit


def _metadata_functions() -> frozenset[Any]:
    """Functions that look at a tensor and not at its values."""
    tensor = torch.Tensor
    names = (
        "shape dtype device requires_grad grad grad_fn is_leaf layout ndim is_sparse is_meta "
        "is_quantized is_cuda is_cpu _version names itemsize nbytes is_nested is_mkldnn"
    )
    found: list[Any] = [
        getattr(tensor, name).__get__ for name in names.split() if hasattr(tensor, name)
    ]
    found += [
        tensor.size,
        tensor.dim,
        tensor.numel,
        tensor.stride,
        tensor.ndimension,
        tensor.nelement,
        tensor.element_size,
        tensor.is_floating_point,
        tensor.is_complex,
        tensor.is_contiguous,
        tensor.storage_offset,
        tensor.__hash__,
        tensor.register_hook,
        torch.is_floating_point,
        torch.is_complex,
        torch.numel,
    ]
    return frozenset(found)


class OutsideUses(TorchFunctionMode):
    """Brings the weights of any function that is called. See the file."""

    def __init__(self, hooks: Hooks, units: Mapping[int, Unit]) -> None:
        super().__init__()
        self._hooks = hooks
        self._units = units
        self._metadata = _metadata_functions()

    def _look(self, arguments: Any) -> None:
        for argument in arguments:
            kind = type(argument)
            if kind is torch.nn.Parameter:
                unit = self._units.get(id(argument))
                if unit is not None:
                    self._hooks.use_outside(unit)
            elif kind in (tuple, list):
                self._look(argument)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func not in self._metadata:
            self._look(args)
            if kwargs:
                self._look(kwargs.values())
        return func(*args, **(kwargs or {}))


def is_compiled(root: torch.nn.Module) -> bool:
    """Whether parts of a module are compiled; the mode would keep these from being so."""
    return torch.compiler.is_compiling() or any(
        module._compiled_call_impl is not None or type(module).__name__ == "OptimizedModule"
        for module in root.modules()
    )


class _Watched:
    """The mode around the forwards of one training's modules."""

    def __init__(self, hooks: Hooks) -> None:
        self._hooks = hooks
        self._mode = OutsideUses(hooks, unit_of(hooks))
        self._active = False
        self._learned: set[Any] = set()  # kinds of forwards that were seen as a whole

    def call(self, module: torch.nn.Module, forward: Any, args: Any, kwargs: Any) -> Any:
        if self._active or backward_task() != -1:
            return forward(*args, **kwargs)
        kind = (module, module.training, torch.is_grad_enabled())
        if kind in self._learned and is_compiled(self._hooks.root):
            return forward(*args, **kwargs)
        self._active = True
        try:
            with self._mode:
                output = forward(*args, **kwargs)
        finally:
            self._active = False
        self._learned.add(kind)
        return output

    def around(self, module: torch.nn.Module) -> Any:
        forward = module.forward

        @functools.wraps(forward)
        def watched(*args: Any, **kwargs: Any) -> Any:
            try:
                return self.call(module, forward, args, kwargs)
            except BaseException as error:
                self._hooks.fail(module, error)
                raise

        return torch.compiler.disable(watched, recursive=False)


def watch_forwards(hooks: Hooks) -> None:
    """Puts the mode around the forwards of the root and of modules that call others."""
    watched = _Watched(hooks)
    for module in hooks.users:
        calls_others = module not in hooks.blocks and next(module.children(), None) is not None
        if module is hooks.root or calls_others:
            module.forward = watched.around(module)
