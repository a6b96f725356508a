"""Sums of micro-batches in fp32 on a device; the engine gets each once a step.

From the result of :func:`spared`, the engine decides whether sums are here or in host memory
(docs/c_api.md, ``device_sums``). The bits are the same: the first micro-batch replaces the sum of
the step before, each later one is one addition of fp32, and the sum is rounded once to the dtype of
the weight, to nearest even.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from penstock import _cuda
from penstock._model import Entry
from penstock.errors import InvalidArgumentError

CHOICES = ("auto", "host", "device")
_SHARE = 4  # a quarter of free memory; activations and the allocator need the rest
_ALL = 2**62


def spared(device: torch.device, choice: str, limit: Any = None) -> int | None:
    """Returns the device bytes for sums; None on the CPU, whose sums are the engine's.

    Args:
        choice: ``"auto"``: a quarter of what is free now; ``"host"``: none; ``"device"``: all that
            sums need.
        limit: ``penstock.device_memory``, which leaves nothing to ``"auto"``; None if there is none.
    """
    if choice not in CHOICES:
        raise InvalidArgumentError(
            f'penstock: penstock.gradient_sums is {choice!r}; it is "auto", "host" or "device"'
        )
    if not _cuda.is_gpu(device):
        return None
    if choice == "auto" and limit is not None:
        return 0
    if choice == "auto":
        return _cuda.free_memory(device) // _SHARE
    return _ALL if choice == "device" else 0


class DeviceSums:
    """The sums of all trained tensors, in memory that is taken at once.

    Args:
        units: with ``entries``.
        device: of the gradients.
        micro_batches: the max gradients of a tensor in a step.
    """

    def __init__(self, units: Sequence[Any], device: torch.device, micro_batches: int) -> None:
        self._micro_batches = micro_batches
        self._sums: dict[tuple[int, int], torch.Tensor] = {}
        self._counts: dict[tuple[int, int], int] = {}
        self._given: set[tuple[int, int]] = set()
        self._entries = [entry for unit in units for entry in unit.entries if entry.trained]
        with torch.inference_mode(False):
            for unit in units:
                trained = [entry for entry in unit.entries if entry.trained]
                sizes = [entry.parameter.numel() for entry in trained]
                sums = torch.empty(sum(sizes), dtype=torch.float32, device=device).split(sizes)
                for entry, values in zip(trained, sums):
                    self._sums[_place(entry)] = values.view(entry.parameter.shape)

    def add(self, entry: Entry, gradient: torch.Tensor) -> torch.Tensor | None:
        """Adds the gradient of a micro-batch. If it was the last one, returns the sum for the
        engine, which does not change until the next step."""
        place = _place(entry)
        count = self._counts.get(place, 0) + 1
        if place in self._given:
            raise InvalidArgumentError(
                f"penstock: tensor {entry.name} got {count} gradients in this step, or one after its "
                f"norm was taken, and gradient_accumulation_steps is {self._micro_batches}; end the "
                "step before the next backward, or raise gradient_accumulation_steps"
            )
        if gradient.dtype not in (torch.float32, entry.parameter.dtype):
            raise InvalidArgumentError(
                f"penstock: tensor {entry.name} is of {entry.parameter.dtype}, and got a gradient of "
                f"{gradient.dtype}; give one of the same dtype or of float32"
            )
        self._counts[place] = count  # first: an interrupt may lose it, but never adds it twice
        with torch.no_grad(), torch.inference_mode(False):
            if count == 1:
                self._sums[place].copy_(gradient)
            else:
                self._sums[place].add_(gradient)
        return self._take(entry) if count == self._micro_batches else None

    def rest(self) -> Iterator[tuple[Entry, torch.Tensor]]:
        """Yields the sums of tensors that got fewer gradients than there are micro-batches."""
        for entry in self._entries:
            place = _place(entry)
            if place in self._counts and place not in self._given:
                yield entry, self._take(entry)

    def _take(self, entry: Entry) -> torch.Tensor:
        self._given.add(_place(entry))
        with torch.no_grad(), torch.inference_mode(False):
            return self._sums[_place(entry)].to(entry.parameter.dtype)

    def clear(self) -> None:
        """Begins another step. The engine has copied or dropped the sums it was given."""
        self._counts.clear()
        self._given.clear()


def _place(entry: Entry) -> tuple[int, int]:
    return entry.unit, entry.tensor
