"""Finds weights that a function uses outside of the forward of their own module.

During the root's forward, a mode sees every function of torch and its arguments. It wraps the
forward itself, without hooks, so that an interrupt ends it as well.
"""

from __future__ import annotations

import collections
import functools
import sys
import threading
from typing import Any

import torch
from torch.overrides import (
    _get_current_function_mode_stack,
    _pop_mode,
    _push_mode,
)

from penstock._hooks import Hooks, backward_task, unit_of
from penstock._watch import Watch

_KNOWN_AFTER = 2  # forwards that have learned nothing


class OutsideUses(Watch):
    """Brings the weights of any function that is called. See the file."""

    @torch.compiler.disable
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.look(func, args, kwargs)
        return func(*args, **(kwargs or {}))


class _Watched:
    """The mode around the forwards of one training's modules, a thread at a time.

    A mode costs about as much as the call that it sees. So it is left out once a kind of forward has
    learned nothing new twice, until a step is skipped because of NaN, which weights show that were
    not brought.

    Compiled code must not see the mode, or it would be compiled in. So the mode is removed while a
    compiled module runs, and after a first forward of its kind it is not used at all if anything is
    compiled.
    """

    def __init__(self, hooks: Hooks) -> None:
        self._hooks = hooks
        self._mode = OutsideUses(unit_of(hooks), hooks.use_outside)
        self._thread = threading.local()  # has `active`: a forward is watched, or the mode paused
        self._known: collections.Counter[Any] = collections.Counter()  # forwards, by their kind

    def call(self, module: torch.nn.Module, forward: Any, args: Any, kwargs: Any) -> Any:
        if self._is_active() or backward_task() != -1:
            return forward(*args, **kwargs)
        kind = (module, module.training, torch.is_grad_enabled(), self._hooks.runtime.nan_steps)
        known = self._known[kind]
        if known >= _KNOWN_AFTER or (known and self._hooks.is_compiled()):
            return forward(*args, **kwargs)
        learned = self._hooks.learned_units
        try:
            self._thread.active = True
            self.resume()
            output = forward(*args, **kwargs)
        finally:
            self._thread.active = False
            self._remove()
        if self._hooks.learned_units == learned or self._hooks.is_compiled():
            self._known[kind] += 1
        return output

    def _is_active(self) -> bool:
        """Whether a forward of this thread is watched. An interrupt may have left the flag."""
        if not getattr(self._thread, "active", False):
            return False
        frame = sys._getframe(1)  # of the new call
        while frame.f_back is not None:
            frame = frame.f_back
            if frame.f_code is _Watched.call.__code__ and frame.f_locals["self"] is self:
                return True
        return False

    def _remove(self) -> None:
        """Removes the mode, if it is there, from below modes that an interrupt has left above."""
        above = []
        while self._mode in _get_current_function_mode_stack():
            mode = _pop_mode()
            if mode is not self._mode:
                above.append(mode)
        for mode in reversed(above):
            _push_mode(mode)

    def pause(self) -> bool:
        """Removes the mode; returns whether it was on top."""
        stack = _get_current_function_mode_stack()
        if not stack or stack[-1] is not self._mode:
            return False
        _pop_mode()
        return True

    def resume(self) -> None:
        watched = getattr(self._thread, "active", False)
        if watched and self._mode not in _get_current_function_mode_stack():
            _push_mode(self._mode)

    def around(self, module: torch.nn.Module) -> Any:
        forward = module.forward

        @functools.wraps(forward)
        def watched(*args: Any, **kwargs: Any) -> Any:
            called = self._hooks.is_within(module)  # by module(…), and not by module.forward(…)
            try:
                if not called:
                    self._hooks.before(module, args, kwargs)
                output = self.call(module, forward, args, kwargs)
                if not called:
                    self._hooks.after(module, args, output)
                return output
            except BaseException as error:
                self._hooks.fail(module, error, called)
                raise

        return torch.compiler.disable(watched, recursive=False)


def watch_forwards(hooks: Hooks) -> None:
    """Wraps the forwards of the root and of modules that call others in the mode."""
    watched = _Watched(hooks)
    hooks.pause_mode, hooks.resume_mode = watched.pause, watched.resume
    for module in hooks.users:
        calls_others = module not in hooks.blocks and next(module.children(), None) is not None
        if module is hooks.root or calls_others:
            module.forward = watched.around(module)
