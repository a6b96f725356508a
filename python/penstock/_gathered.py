"""Makes weights readable outside of a forward."""

from __future__ import annotations

import contextlib
import warnings
import zlib
from collections.abc import Iterable, Iterator
from typing import Union

import torch

from penstock._guards import link_of
from penstock._hooks import Hooks
from penstock._storage import Unit
from penstock.errors import InvalidArgumentError

Gatherable = Union[torch.nn.Module, torch.Tensor, Iterable[torch.Tensor]]


def _parameters_of(what: Gatherable) -> list[torch.Tensor]:
    if isinstance(what, torch.nn.Module):
        return list(what.parameters())
    if isinstance(what, torch.Tensor):
        return [what]
    return list(what)


def _checksum(memory: torch.Tensor) -> int:
    """A write to ``parameter.data`` moves no version counter, so the content tells."""
    return zlib.crc32(memory.cpu().numpy().data)


def _show(hooks: Hooks, unit: Unit, device: torch.device, call: object) -> None:
    with hooks.runtime.lock:
        if not unit.gathered:
            memory = hooks.runtime.read(unit, device)
            unit.show(unit.tensors_in(memory))
            unit.copy = memory, _checksum(memory)
        unit.gathered.add(call)


def _hide(hooks: Hooks, unit: Unit, call: object, changed: list[str]) -> None:
    """Ends what :func:`_show` has begun, which an interrupt may have ended early. Adds the unit to
    ``changed`` if its copy was written past torch's counters."""
    with hooks.runtime.lock:
        unit.gathered.discard(call)
        if not unit.gathered:
            copy, unit.copy = unit.copy, None
            try:
                unit.check_unwritten()
                if copy is not None and _checksum(copy[0]) != copy[1]:
                    changed.append(unit.name)
            finally:  # written values are dropped, even if the error is not raised
                if unit.filled:
                    unit.show_here()
                else:
                    unit.show_away()


@contextlib.contextmanager
def gathered(parameters: Gatherable, write: bool = False) -> Iterator[None]:
    """Makes parameters show their current weights while a ``with`` lasts.

    They are copies, so tensors that are made from them stay valid. ``state_dict()`` has the copies, so
    adapters that are merged within can be saved within. Calls may be nested, in any
    order. Parameters that belong to no training are unchanged. If the module computes on a CUDA
    device, the copies of a single unit are there, and those of several are in host memory: together
    they need not fit the device. Forwards do not run with weights in host memory.

    Args:
        parameters: a parameter, several, or a module with all that is in it.
        write: whether weights will be written. That is possible from ``penstock.initialize`` to the
            first use of the module.

    Raises:
        InvalidArgumentError: ``write`` is too late, or a parameter was written without it.
    """
    found: dict[Unit, Hooks] = {}
    for parameter in _parameters_of(parameters):
        link = link_of(parameter)
        if link is not None and link.hooks.runtime.begun:
            found[link.unit] = link.hooks
    if write and found:
        raise InvalidArgumentError(
            "penstock: weights were to be written after they were taken (at the first use, or at "
            "once with weights= or device=); write them after penstock.initialize and before the "
            "first forward, or before penstock.initialize"
        )
    host = torch.device("cpu")
    changed: list[str] = []
    stack = contextlib.ExitStack()
    try:
        with stack:
            for unit, hooks in found.items():
                stack.callback(_hide, hooks, unit, stack, changed)
                _show(hooks, unit, unit.device if len(found) == 1 else host, stack)
            yield
    except KeyboardInterrupt:
        for unit, hooks in found.items():
            if stack in unit.gathered:  # the interrupt came while it was to be hidden
                _hide(hooks, unit, stack, changed)
        raise
    if changed:
        others = f" and {len(changed) - 1} others" if len(changed) > 1 else ""
        warnings.warn(
            f"penstock: weights of {changed[-1]}{others} were changed within penstock.gathered (as by "
            "merging adapters), and the change ends with it; only what was saved within has it",
            stacklevel=3,
        )
