"""Refuses calls that would change, copy or save parameters without the engine, each with one
exception.

Submodules and parameters are guarded as well as the module itself.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from penstock._hooks import Hooks
from penstock._storage import Unit
from penstock.errors import InvalidArgumentError

_LINK = "_penstock"


def _refuse(what: str, instead: str) -> InvalidArgumentError:
    return InvalidArgumentError(f"penstock: {what} is refused after penstock.initialize; {instead}")


class Link:
    """Leads from a parameter to its unit. Refuses to be copied, and so the parameter does."""

    def __init__(self, hooks: Hooks, unit: Unit) -> None:
        self.hooks = hooks
        self.unit = unit

    def __deepcopy__(self, memo: Any) -> Any:
        raise _refuse("a copy of a parameter", "copy the module before, or use penstock.gathered")

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise _refuse("pickling a parameter", "save model.state_dict()")


def link_of(parameter: torch.Tensor) -> Link | None:
    """Returns the link of a parameter that belongs to a training."""
    found: Link | None = getattr(parameter, _LINK, None)
    return found


def _guard_parameter(parameter: torch.nn.Parameter, link: Link) -> None:
    def copy(memo: Any) -> Any:
        if not link.unit.gathered and link.hooks.runtime.begun:
            link.__deepcopy__(memo)
        return torch.nn.Parameter.__deepcopy__(parameter, memo)

    setattr(parameter, _LINK, link)
    parameter.__deepcopy__ = copy  # type: ignore[method-assign]
    parameter.__reduce_ex__ = link.__reduce_ex__  # type: ignore[method-assign]


def _applied_to_buffers(module: torch.nn.Module, function: Callable[[Any], Any]) -> None:
    for inner in module.modules():
        for name, buffer in inner._buffers.items():
            if buffer is not None:
                inner._buffers[name] = function(buffer)


def _changes(parameter: torch.Tensor, function: Callable[[Any], Any]) -> bool:
    """Whether ``.to()``, ``.half()`` and the like would make another tensor of a parameter."""
    probe = torch.zeros([2] * parameter.dim(), dtype=parameter.dtype, device=parameter.device)
    return function(probe) is not probe or probe.is_shared()


def _guard_apply(module: torch.nn.Module) -> None:
    def apply(function: Callable[[Any], Any], recurse: bool = True) -> torch.nn.Module:
        with torch.no_grad():
            if any(_changes(parameter, function) for parameter in module.parameters()):
                raise _refuse(
                    "another dtype, device or memory of parameters (.to(), .half(), …)",
                    "do that before, and name a device by penstock.initialize(…, device=…)",
                )
            _applied_to_buffers(module, function)
        return module

    module._apply = apply  # type: ignore[method-assign]


def _refuse_embeddings(*_: Any, **__: Any) -> Any:
    raise _refuse("resize_token_embeddings", "resize before")


def _refuse_loading(hooks: Hooks, module: torch.nn.Module, *_: Any) -> None:
    if hooks.runtime.begun:
        raise _refuse(
            "load_state_dict, once the weights were taken (at the first use, or at once with device=),",
            "load weights before, or resume a run by its name",
        )


def install(hooks: Hooks) -> None:
    """Guards the module of a training."""
    for unit in hooks.runtime.units:
        for entry in unit.entries:
            _guard_parameter(entry.parameter, Link(hooks, unit))
    refuse_loading = functools.partial(_refuse_loading, hooks)
    for module in hooks.root.modules():
        if next(module.parameters(), None) is None:
            continue
        _guard_apply(module)
        if next(module.parameters(recurse=False), None) is not None:
            hooks.handles.append(module.register_load_state_dict_pre_hook(refuse_loading))
        if hasattr(module, "resize_token_embeddings"):
            module.resize_token_embeddings = _refuse_embeddings  # type: ignore[assignment]
