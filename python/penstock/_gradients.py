"""``.grad`` of parameters whose gradients the engine has.

Backward gives each gradient to the engine at once. What a parameter shows in ``.grad`` instead is a
:class:`Gradient`: it takes no memory, and any function of torch that gets it reads the gradient from
the engine; one that writes to it gives the result back. So ``clip_grad_norm_``, ``GradScaler``, logs
and hooks see what they would see in plain memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch.utils._pytree import tree_map


class Access(NamedTuple):
    """How the gradient of one parameter is read and replaced."""

    read: Callable[[], torch.Tensor]
    replace: Callable[[torch.Tensor], None]
    add: Callable[[torch.Tensor], None]  # what another backward, or more of one, has computed


class Gradient(torch.Tensor):
    """Stands for a gradient, or for a view of one."""

    _access: Access
    _views: tuple[tuple[Any, tuple[Any, ...], dict[str, Any]], ...]

    @staticmethod
    def of(parameter: torch.Tensor, access: Access) -> Gradient:
        """Returns what a parameter shows in ``.grad``."""
        return Gradient._like(parameter, None, access, ())  # contiguous, as weights here are

    @staticmethod
    def _like(tensor: torch.Tensor, strides: Any, access: Access, views: Any) -> Gradient:
        made: Gradient = torch.Tensor._make_wrapper_subclass(
            Gradient,
            tensor.shape,
            strides=strides,
            dtype=tensor.dtype,
            device=tensor.untyped_storage().device,
        )
        made._access = access
        made._views = views
        return made

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"{_value_of(self)[1]!r}"

    def __deepcopy__(self, memo: Any) -> torch.Tensor:
        return _value_of(self)[1].clone()

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _value_of(self)[1].clone().__reduce_ex__(protocol)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        schema = func._schema
        if func is torch.ops.aten.add_.Tensor and _adds(args, kwargs):
            args[0]._access.add(args[1])
            return args[0]
        lists = [a for a in args if isinstance(a, (list, tuple)) and _has_gradient(a)]
        if lists and schema.name.split("::")[-1].lstrip("_").startswith(("foreach", "amp_foreach")):
            return _one_by_one(func, args, kwargs, lists)
        return _call(func, args, kwargs)


def _adds(args: Sequence[Any], kwargs: Any) -> bool:
    """Whether autograd adds what a backward has computed to a gradient."""
    return (
        torch._C._current_graph_task_id() != -1
        and isinstance(args[0], Gradient)
        and not args[0]._views
        and isinstance(args[1], torch.Tensor)
        and not isinstance(args[1], Gradient)
        and args[0].shape == args[1].shape
        and not kwargs
    )


def _has_gradient(tensors: Sequence[Any]) -> bool:
    return any(isinstance(tensor, Gradient) for tensor in tensors)


def _value_of(gradient: Gradient) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the whole gradient in new memory, and the view of it that a tensor stands for."""
    whole = value = gradient._access.read()
    for func, args, kwargs in gradient._views:
        value = func(value, *args, **kwargs)
    return whole, value


def _one_by_one(func: Any, args: Any, kwargs: Any, lists: Any) -> Any:
    """Calls a function of lists of tensors with one of each at a time, so that one gradient is in
    memory at a time."""
    results = []
    for i in range(len(lists[0])):
        single = [
            [a[i]] if isinstance(a, (list, tuple)) and len(a) == len(lists[0]) else a for a in args
        ]
        results.append(_call(func, single, kwargs))
    if all(isinstance(result, (list, tuple)) for result in results):
        return [each for result in results for each in result]
    return results[0] if results else None


def _call(func: Any, args: Any, kwargs: Any) -> Any:
    """Calls a function with the gradients in place of what stands for them, and gives back those
    that it has written."""
    found: dict[int, tuple[Gradient, torch.Tensor, torch.Tensor]] = {}

    def value(given: Any) -> Any:
        if not isinstance(given, Gradient):
            return given
        if id(given) not in found:
            found[id(given)] = (given, *_value_of(given))
        return found[id(given)][2]

    result = func(*tree_map(value, list(args)), **tree_map(value, kwargs))
    written = _written(func._schema, args, kwargs)
    for gradient in written:
        gradient._access.replace(found[id(gradient)][1])
    first = args[0] if args else None
    if written:  # an in-place function returns what it has written
        by_value = {id(values): gradient for gradient, _, values in found.values()}
        return tree_map(lambda r: by_value.get(id(r), r), result)
    if isinstance(first, Gradient) and isinstance(result, torch.Tensor) and _is_view(func._schema):
        views = (*first._views, (func, tuple(args[1:]), kwargs))
        return Gradient._like(result, result.stride(), first._access, views)
    return result


def _written(schema: Any, args: Sequence[Any], kwargs: Any) -> list[Gradient]:
    """Returns the gradients that a function writes to."""
    found = []
    for i, argument in enumerate(schema.arguments):
        if argument.alias_info is None or not argument.alias_info.is_write:
            continue
        given = args[i] if i < len(args) else kwargs.get(argument.name)
        for tensor in given if isinstance(given, (list, tuple)) else (given,):
            if isinstance(tensor, Gradient):
                found.append(tensor)
    return found


def _is_view(schema: Any) -> bool:
    """Whether a function returns a view of its first argument."""
    aliases = schema.arguments[0].alias_info if schema.arguments else None
    returned = schema.returns[0].alias_info if len(schema.returns) == 1 else None
    return aliases is not None and returned is not None and not aliases.is_write
