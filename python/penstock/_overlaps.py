"""Finds parameters that share memory, which a step would update several times or not at all.

A parameter in several places (tied weights) counts once. Parts of one storage without a common
element share nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import torch

from penstock._init import Later
from penstock.errors import InvalidArgumentError

Named = tuple[str, torch.Tensor]

_OWN = "memory of its own (p.data = p.data.clone())"


class _Place(NamedTuple):
    """A tensor and the byte range of its elements.

    Attributes:
        space: the address space of ``begin`` and ``end``: a device, or a storage without memory.
    """

    space: tuple[str, int]
    begin: int
    end: int
    number: int
    name: str
    tensor: torch.Tensor
    trained: bool


def _steps(tensor: torch.Tensor) -> list[tuple[int, int]]:
    """Returns stride in bytes and size of each dimension, the innermost first."""
    size = tensor.element_size()
    dimensions = zip(tensor.stride(), tensor.shape)
    return sorted((stride * size, length) for stride, length in dimensions if length > 1)


def _bytes_between(tensor: torch.Tensor) -> int:
    """Returns the bytes from the first element to the end of the last one."""
    return tensor.element_size() + sum(s * (length - 1) for s, length in _steps(tensor))


def _place(number: int, name: str, tensor: torch.Tensor, trained: bool) -> _Place | None:
    """Returns the place of a tensor; None if it has no plain memory."""
    if (
        type(tensor) not in (torch.Tensor, torch.nn.Parameter, Later)
        or tensor.layout != torch.strided
    ):
        return None
    storage = tensor.untyped_storage()
    begin = int(tensor.storage_offset()) * tensor.element_size()
    space = (str(tensor.device), 0)
    if tensor.device.type == "meta":
        space = ("meta", storage._cdata)
    elif storage.data_ptr() != 0:
        begin += storage.data_ptr()
    else:
        return None
    if tensor.numel() == 0:
        return None
    return _Place(space, begin, begin + _bytes_between(tensor), number, name, tensor, trained)


def _places(trained: Iterable[Named], others: Iterable[Named]) -> list[_Place]:
    """Returns the places of tensors, each once, in the order of addresses."""
    seen: set[int] = set()
    found = []
    for kind, named in ((True, trained), (False, others)):
        for name, tensor in named:
            if id(tensor) not in seen:
                seen.add(id(tensor))
                found.append(_place(len(seen), name, tensor, kind))
    return sorted(place for place in found if place is not None)


def _runs(place: _Place) -> tuple[torch.Tensor, int]:
    """Returns the begins of a tensor's contiguous runs, and their length."""
    length = place.tensor.element_size()
    begins = torch.tensor([place.begin], device="cpu")
    for stride, size in _steps(place.tensor):
        if stride == length:
            length *= size
        else:
            begins = (begins[:, None] + stride * torch.arange(size, device="cpu")).flatten()
    return begins, length


def _share(*places: _Place) -> bool:
    """Whether any two elements of some tensors share memory."""
    runs = [_runs(place) for place in places]
    begins, order = torch.cat([begins for begins, _ in runs]).sort()
    lengths = torch.cat([torch.full_like(begins, length) for begins, length in runs])[order]
    return bool((begins[:-1] + lengths[:-1] > begins[1:]).any())


def _shares_with_itself(place: _Place) -> bool:
    """Whether elements of one tensor share memory."""
    if place.tensor.nbytes > place.end - place.begin:
        return True
    behind = place.tensor.element_size()
    for stride, size in _steps(place.tensor):
        if stride < behind:
            return _share(place)
        behind += stride * (size - 1)
    return False


def _pairs(places: Iterable[_Place]) -> Iterator[tuple[_Place, _Place]]:
    """Yields tensors that share memory, at least one of which is trained, that one first."""
    open_: list[_Place] = []  # places that may reach the next one
    for place in places:
        open_ = [o for o in open_ if o.space == place.space and o.end > place.begin]
        for other in open_:
            if (place.trained or other.trained) and _share(place, other):
                first, second = sorted((place, other), key=lambda p: p.number)
                yield first, second
        open_.append(place)


def check(trained: Iterable[Named], others: Iterable[Named] = ()) -> None:
    """Raises if elements of trained parameters share memory with any other, or with ``others``.

    Args:
        trained: parameters with their names. One that occurs twice is tied.
        others: tensors that would not follow the updates, with names for messages.
    """
    places = _places(trained, others)
    for place in places:
        if place.trained and _shares_with_itself(place):
            raise InvalidArgumentError(
                f"penstock: elements of parameter {place.name} share memory, as those of an "
                "expanded tensor do, and each would have an update of its own; give the parameter "
                + _OWN
            )
    _check_pairs(places)


def check_pairs(trained: Iterable[Named]) -> None:
    """Raises if two trained parameters share memory. A single one may be expanded, like those that
    wait for the weights of an optimizer that will be collected soon."""
    _check_pairs(_places(trained, ()))


def _check_pairs(places: Iterable[_Place]) -> None:
    for first, second in _pairs(places):
        if second.trained:
            raise InvalidArgumentError(
                f"penstock: parameters {first.name} and {second.name} are two that share memory, "
                "and a step would update it twice; tie them by one Parameter in both places "
                f"(b.weight = a.weight), or give each {_OWN}"
            )
        raise InvalidArgumentError(
            f"penstock: {second.name} shares memory with parameter {first.name}, and would not "
            f"follow its updates; use the parameter itself there, or give each {_OWN}"
        )


def _all_of(model: torch.nn.Module) -> Iterator[Named]:
    for name, parameter in model.named_parameters():
        yield f"frozen parameter {name}", parameter
    for name, buffer in model.named_buffers():
        yield f"buffer {name}", buffer


def check_module(model: torch.nn.Module) -> None:
    """Raises if trained parameters of a module share memory with each other or with other tensors
    of it."""
    check(((name, p) for name, p in model.named_parameters() if p.requires_grad), _all_of(model))


def seen_elsewhere(trained: Iterable[Named], model: torch.nn.Module) -> set[int]:
    """Returns ids of the trained parameters whose memory others or buffers of a module share."""
    places = _places(trained, _all_of(model))
    return {id(first.tensor) for first, _ in _pairs(places)}
