"""Sees the weights that any function of torch gets as arguments.

Both levels use it to find weights that are used outside of the forward of their own module.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch.overrides import TorchFunctionMode


def _metadata_functions() -> frozenset[Any]:
    """Functions that read a tensor's attributes and not its values."""
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


class Watch(TorchFunctionMode):
    """The common part of both modes: :meth:`look`, which they call before each function.

    Args:
        units: of tensors, by their ids.
        use: called with the unit of each tensor whose values a function may read.
    """

    def __init__(self, units: Mapping[int, Any], use: Callable[[Any], None]) -> None:
        super().__init__()
        self._units = units
        self._use = use
        self._metadata = _metadata_functions()

    def look(self, func: Any, args: Iterable[Any], kwargs: Mapping[str, Any] | None) -> None:
        if func not in self._metadata:
            self._look(args)
            if kwargs:
                self._look(kwargs.values())

    def _look(self, arguments: Iterable[Any]) -> None:
        for argument in arguments:
            unit = self._units.get(id(argument))
            if unit is not None:
                self._use(unit)
            elif isinstance(argument, (tuple, list)):
                self._look(argument)
