"""Finds weights that a function uses outside of the forward of their own module.

Within the root's forward, a mode sees every function of torch and its arguments. It is put around
the forward itself, and not by hooks, so that an interrupt ends it as well.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Mapping
from typing import Any

import torch
from torch.overrides import (
    TorchFunctionMode,
    _get_current_function_mode_stack,
    _pop_mode,
    _push_mode,
)

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

    @torch.compiler.disable
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func not in self._metadata:
            self._look(args)
            if kwargs:
                self._look(kwargs.values())
        return func(*args, **(kwargs or {}))


class _Watched:
    """The mode around the forwards of one training's modules, a thread at a time.

    Compiled code may not see the mode: it would be compiled into it. So the mode is taken away
    while a compiled module runs, and after a first forward of its kind it is not used at all if
    anything is compiled.
    """

    def __init__(self, hooks: Hooks) -> None:
        self._hooks = hooks
        self._mode = OutsideUses(hooks, unit_of(hooks))
        self._thread = threading.local()  # has `active`, and `paused` while it is taken away
        self._learned: set[Any] = set()  # kinds of forwards that were seen as a whole

    def call(self, module: torch.nn.Module, forward: Any, args: Any, kwargs: Any) -> Any:
        thread = self._thread
        if getattr(thread, "active", False) or backward_task() != -1:
            return forward(*args, **kwargs)
        kind = (module, module.training, torch.is_grad_enabled())
        if kind in self._learned and self._hooks.is_compiled():
            return forward(*args, **kwargs)
        thread.paused = True  # not there yet
        try:
            thread.active = True
            self.resume()
            output = forward(*args, **kwargs)
        finally:
            if not thread.paused:
                _pop_mode()
            thread.active = False
        self._learned.add(kind)
        return output

    def pause(self) -> bool:
        """Takes the mode away; returns whether it was there, on top."""
        thread = self._thread
        if not getattr(thread, "active", False) or thread.paused:
            return False
        stack = _get_current_function_mode_stack()
        if not stack or stack[-1] is not self._mode:
            return False
        thread.paused = True
        _pop_mode()
        return True

    def resume(self) -> None:
        if getattr(self._thread, "active", False):
            _push_mode(self._mode)
            self._thread.paused = False

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
    hooks.pause_mode, hooks.resume_mode = watched.pause, watched.resume
    for module in hooks.users:
        calls_others = module not in hooks.blocks and next(module.children(), None) is not None
        if module is hooks.root or calls_others:
            module.forward = watched.around(module)
