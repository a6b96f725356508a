"""``deepspeed.zero``: modules without memory for weights, and access to weights."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

import penstock

__all__ = ["GatheredParameters", "Init"]


@contextlib.contextmanager
def Init(
    module: torch.nn.Module | None = None, *_: Any, enabled: bool = True, **__: Any
) -> Iterator[None]:
    """A context in which modules take no memory for their weights.

    ``initialize`` then gives them the values of the modules' own initializers, unit by unit. Values
    that a constructor wrote into its parameters are lost.

    Args:
        module: refused: a module that has its memory already.
        enabled: False: does nothing.
    """
    if module is not None:
        raise penstock.InvalidArgumentError(
            "penstock: zero.Init(module=…) is not offered; make the module within "
            "`with zero.Init():`, or give it to initialize as it is"
        )
    with penstock.init() if enabled else contextlib.nullcontext():
        yield


@contextlib.contextmanager
def GatheredParameters(
    params: Any,
    modifier_rank: int | None = None,
    fwd_module: torch.nn.Module | None = None,
    enabled: bool = True,
) -> Iterator[None]:
    """Makes parameters show their current weights.

    Args:
        params: a parameter, several, or a module.
        modifier_rank: not None: weights will be written, which works before the first step only.
        fwd_module: has no meaning here.
        enabled: False: does nothing.
    """
    if not enabled:
        yield
        return
    with penstock.gathered(params, write=modifier_rank is not None):
        yield
