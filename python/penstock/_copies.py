"""Copies and pickles of parameters that wait for their weights, for an optimizer with ``model=``.

Such a parameter holds NaN until a forward needs it. So a copy of it (``copy.deepcopy``,
``torch.save``, averages of weights) has its weights brought first.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import torch

_METHODS = ("__deepcopy__", "__reduce_ex__")


def guard_copies(
    parameters: Iterable[torch.nn.Parameter], bring: Callable[[], None]
) -> Callable[[], None]:
    """Has ``bring`` called before a parameter is copied or pickled; returns what ends that."""
    guarded = list(parameters)
    for parameter in guarded:
        for method in _METHODS:
            guard = functools.partial(_call, parameter, method, bring)
            setattr(parameter, method, guard)

    def end() -> None:
        for parameter in guarded:
            for method in _METHODS:
                parameter.__dict__.pop(method, None)

    return end


def _call(
    parameter: torch.nn.Parameter, method: str, bring: Callable[[], None], *arguments: Any
) -> Any:
    """Calls a method of the class, on a parameter without ours, which no copy gets."""
    bring()
    ours = {name: parameter.__dict__.pop(name) for name in _METHODS if name in parameter.__dict__}
    try:
        return getattr(type(parameter), method)(parameter, *arguments)
    finally:
        parameter.__dict__.update(ours)
