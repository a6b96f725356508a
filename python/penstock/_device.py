"""The device that a module computes on, the parts of the module that move there, and whether they
fit.

Weights arrive unit by unit (_runtime.py). Buffers move there as a whole, and stay.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Union

import torch

from penstock import _cuda, _library
from penstock._files import paths_of
from penstock._init import Later
from penstock._sums import spared
from penstock._units import Plan, text_of
from penstock.errors import BudgetError, InvalidArgumentError

Device = Union[str, int, torch.device, None]

# Blocks on the device, unless penstock.device_memory sets a limit: one computes while the next one
# arrives. In a backward, a block is released only when the one before it is present.
_PLACES = 2
_ROUNDED = 512  # bytes, to which torch's allocator rounds


def _made_for(parameter: torch.Tensor) -> torch.device | None:
    """Returns where a parameter is, or will be; None if that is not known."""
    if parameter.device.type != "meta":
        return parameter.device
    return parameter.made_for if isinstance(parameter, Later) else None


def _parsed(device: Device) -> torch.device:
    try:
        found = torch.device(device)  # type: ignore[arg-type]
    except (RuntimeError, TypeError, ValueError):
        raise InvalidArgumentError(
            f'penstock: device is {device!r}; give "cpu", "cuda", "cuda:1" or a torch.device'
        ) from None
    if found.type == "cpu":
        return torch.device("cpu")
    if found.type != "cuda":
        raise InvalidArgumentError(
            f"penstock: device is {found}; a module computes on the CPU or on a CUDA device"
        )
    count = _cuda.device_count()
    index = found.index if found.index is not None else _cuda.current_device() if count else 0
    if index >= count:
        raise InvalidArgumentError(
            f"penstock: device is {found}, and torch finds {count} CUDA devices; name one of them, "
            'or device="cpu"'
        )
    return torch.device("cuda", index)


def device_for(model: torch.nn.Module, device: Device) -> torch.device:
    """Returns the device that a module is to compute on: the given one, else the one that its
    parameters are on, or were made for within ``penstock.init``."""
    places = (_made_for(parameter) for parameter in model.parameters())
    found = {place for place in places if place is not None}
    if len(found) > 1:
        raise InvalidArgumentError(
            f"penstock: parameters are on {', '.join(sorted(map(str, found)))}; move them to one "
            "device"
        )
    if device is not None:
        return _parsed(device)
    return found.pop() if found else torch.device("cpu")


def is_elsewhere(model: torch.nn.Module, device: torch.device) -> bool:
    """Whether some of a module's parameters are on another device."""
    return any(parameter.device != device for parameter in model.parameters())


def _own_bytes(tensors: Any, where: torch.device, there: bool) -> int:
    """Counts the bytes of the tensors that are on a device, or of those that are not."""
    unique = {id(tensor): tensor for tensor in tensors}
    return sum(
        -(-tensor.nbytes // _ROUNDED) * _ROUNDED
        for tensor in unique.values()
        if (tensor.device == where) is there
    )


class Asked(NamedTuple):
    """A configuration's settings of memory.

    Attributes:
        config: the engine's. ``penstock.device_memory`` is the max GPU memory of weights, buffers,
            sums and one gradient; without it the limit is the driver's free memory.
        paths: ``nvme_path`` of it.
        whole: whether all weights stay on the device.
        sums: where micro-batches are added up (_sums.py).
    """

    config: Mapping[str, Any]
    paths: Any
    whole: bool
    sums: str


class Room(NamedTuple):
    """The device memory that a module may take.

    Attributes:
        places: how many blocks may be present at once.
        sums: bytes for sums of micro-batches; None on the CPU, whose sums are the engine's.
    """

    places: int
    sums: int | None


class _Need(NamedTuple):
    """Bytes that a module takes on a device besides its activations.

    Attributes:
        kept: weights that stay to the end of a step.
        buffers: those that move there.
        gradient: the largest one of a parameter.
        sums: of micro-batches.
        block: the largest of the units that take turns.
        places: how many of these are present at once.
        home: the engine's bytes for states at home there.
    """

    kept: int
    buffers: int
    gradient: int
    sums: int
    block: int
    places: int
    home: int = 0

    @property
    def total(self) -> int:
        turns = self.block * self.places
        return self.kept + self.buffers + self.gradient + self.sums + turns + self.home

    def __str__(self) -> str:
        states = f", states at home there {self.home}" if self.home else ""
        return (
            f"{self.total} bytes beside activations (weights that stay through a step "
            f"{self.kept}, {self.places} blocks of {self.block}, buffers {self.buffers}, the largest "
            f"gradient {self.gradient}, sums of micro-batches {self.sums}{states})"
        )


def _need(
    model: torch.nn.Module, device: torch.device, cut: Plan, plan: Mapping[str, Any], whole: bool
) -> _Need:
    entries = [entry for unit in cut.units for entry in unit.entries]
    gradient = max(entry.parameter.nbytes for entry in entries if entry.trained)
    buffers = _own_bytes(model.buffers(), device, there=False)
    there = plan["device_bytes"]
    if whole:
        weights = sum(entry.parameter.nbytes for entry in entries)
        home = plan["device_home_bytes"]["total"]
        return _Need(weights, buffers, gradient, there["sums"], 0, 0, home)
    places = min(_PLACES, sum(1 for unit in cut.units if unit.repeated))
    return _Need(there["kept"], buffers, gradient, there["sums"], there["slots"], places)


def room_on(model: torch.nn.Module, device: torch.device, cut: Plan, asked: Asked) -> Room:
    """Returns the device memory that a module may take.

    Raises:
        BudgetError: the module does not fit; the message has the sum.
    """
    limit = asked.config["penstock"].get("device_memory")
    sums = spared(device, asked.sums, limit)
    if sums is None:
        return Room(_PLACES, None)
    options = {"folders": paths_of(asked.paths) or ["."], "slots": 1, "cuda": True}
    plan = _library.plan(asked.config, text_of(cut), {**options, "device_sums": sums})
    limit = plan["config"]["penstock"]["device_memory"]  # in bytes
    need = _need(model, device, cut, plan, asked.whole)
    own = [*model.parameters(), *model.buffers()]
    free = _cuda.free_memory(device) + _own_bytes(own, device, there=True)
    if asked.sums == "auto" and free < need.total:
        sums, need = 0, need._replace(sums=0)
    if limit is not None and limit < need.total:
        raise BudgetError(
            f"penstock: device memory: the module needs {need} on {device}, and "
            f"penstock.device_memory is {limit}; raise it to {need.total}"
        )
    if free < need.total:
        instead = (
            ", or offload its weights (zero_optimization.offload_param)" if asked.whole else ""
        )
        raise BudgetError(
            f"penstock: device memory: the module needs {need} on {device}, and {free} are free; "
            f"use a GPU with {need.total} bytes free{instead}"
        )
    if limit is None or need.block == 0:
        return Room(_PLACES, sums)
    return Room(need.places + (min(limit, free) - need.total) // need.block, sums)


def move_buffers(model: torch.nn.Module, device: torch.device) -> None:
    """Moves buffers, and parameters without elements, to a device. Tied ones stay tied."""
    moved: dict[int, torch.Tensor] = {}
    for module in model.modules():
        for name, buffer in module._buffers.items():
            if buffer is not None:
                if id(buffer) not in moved:
                    moved[id(buffer)] = buffer.to(device)
                module._buffers[name] = moved[id(buffer)]
        for parameter in module._parameters.values():
            if parameter is not None and parameter.numel() == 0:
                parameter.data = parameter.data.to(device)


def check_buffers(model: torch.nn.Module) -> None:
    """Raises if buffers have no values."""
    for name, buffer in model.named_buffers():
        if buffer.device.type == "meta":
            raise InvalidArgumentError(
                f"penstock: buffer {name} has no values (it is on the meta device); make the module "
                'within penstock.init() instead of torch.device("meta"): buffers have values there'
            )
