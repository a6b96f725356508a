"""Brings new weights from the engine back into torch's parameters.

After a step every unit is *pending*: the engine updates it, and the parameters do not have the
result yet. :meth:`Weights.bring` waits for one unit and copies it. If parameters are brought late
(``model=``), a pending parameter holds NaN meanwhile, so that a use that no hook sees makes the
loss NaN, instead of computing with old weights.

Weights that the caller writes directly would be lost with the next update. So the version counter,
the address and a sample of the values of each parameter are noted when it is brought, and compared
at the step.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch.autograd.graph import increment_version

from penstock import _library
from penstock._library import Sample
from penstock._model import Entry
from penstock._parameters import Partition
from penstock.errors import InvalidArgumentError


class _Place(NamedTuple):
    """A parameter, and its own memory."""

    entry: Entry
    data: torch.Tensor


class _Mark(NamedTuple):
    version: int
    address: int


_REPLACED = _Mark(-1, 0)  # no parameter has it


def _mark_of(parameter: torch.Tensor) -> _Mark:
    return _Mark(parameter._version, parameter.data_ptr())


def _target(data: torch.Tensor) -> torch.Tensor:
    """Returns contiguous memory for new weights: that of the parameter, if it is."""
    if data.is_contiguous():
        return data
    return torch.empty_like(data, memory_format=torch.contiguous_format)


def _sample(places: Sequence[_Place]) -> Sample | None:
    """Returns a sample of parameters' memory, which shows writes that move no version counter; None
    if it cannot be read."""
    tensors = [place.data for place in places]
    if not all(tensor.device.type == "cpu" and tensor.is_contiguous() for tensor in tensors):
        return None
    return Sample([(tensor.data_ptr(), tensor.nbytes) for tensor in tensors])


def _content(sample: Sample | None) -> tuple[int, ...] | None:
    return None if sample is None else sample.take()


class Weights:
    """Brings weights back. The caller holds the lock of the training.

    Args:
        engine: the engine.
        partition: its units.
        late: whether parameters hold NaN until they are brought.
    """

    def __init__(
        self,
        engine: _library.Engine,
        partition: Partition,
        late: bool,
    ) -> None:
        self._engine = engine
        self._late = late
        self.pending: set[int] = set()
        self._places = [
            [_Place(entry, entry.parameter.data) for entry in unit.entries]
            for unit in partition.units
        ]
        self._samples = [_sample(places) for places in self._places]
        self._content = [_content(sample) for sample in self._samples]  # as brought
        self._poisons: dict[int, torch.Tensor] = {}
        self._marks: dict[int, _Mark] = {}
        for entry in partition.entries():
            self._marks[id(entry.parameter)] = _mark_of(entry.parameter)

    def changed(self) -> str | None:
        """Returns the name of a parameter that was written without the engine, if any.

        Pending ones are not checked.
        """
        for unit, places in enumerate(self._places):
            if unit in self.pending:
                continue
            for place in places:
                parameter = place.entry.parameter
                same_kind = (parameter.dtype, parameter.shape) == (
                    place.data.dtype,
                    place.data.shape,
                )
                if not same_kind or self._marks[id(parameter)] != _mark_of(parameter):
                    return place.entry.name
            sample, content = self._samples[unit], self._content[unit]
            if sample is not None and content is not None and (now := sample.take()) != content:
                number = next(i for i, (a, b) in enumerate(zip(content, now)) if a != b)
                return places[number].entry.name
        return None

    def check_unchanged(self) -> None:
        """Raises if :meth:`changed` finds a parameter."""
        name = self.changed()
        if name is not None:
            raise InvalidArgumentError(
                f"penstock: the weights of parameter {name} were changed from outside since they "
                "were brought, and the engine does not have the change; change weights before the "
                "first step, load a state_dict, or make a new optimizer"
            )

    def let_go(self) -> None:
        """Marks all units as pending."""
        self._await_all()
        if not self._late:
            return
        for places in self._places:
            for place in places:
                poison = place.data.new_full((), float("nan"))
                self._poisons[id(place.entry.parameter)] = poison
                place.entry.parameter.data = poison.expand(place.data.shape)

    def take_all(self) -> None:
        """Gives all parameters the engine's weights."""
        self._await_all()
        self.bring_all()

    def _await_all(self) -> None:
        """Marks all units as pending. From now on autograd refuses an older graph.

        Parameters that are views of one tensor have one version counter, so all are counted up
        before the first is brought and its version noted.
        """
        self.pending.update(range(len(self._places)))
        self._engine.order()
        for places in self._places:
            for place in places:
                increment_version(place.entry.parameter)

    def bring(self, unit: int, kind: int = _library.ASIDE) -> None:
        """Gives the parameters of a unit their new weights, if it is pending. Waits for it."""
        if unit not in self.pending:
            return
        places = self._places[unit]
        with self._engine.copying():
            targets = [_target(place.data) for place in places]
        self._engine.use_tensors(unit, kind, [target.data_ptr() for target in targets])
        with self._engine.copying():
            for place, target in zip(places, targets):
                if target is not place.data:
                    place.data.copy_(target)
        self._engine.ready()
        for place in places:
            self._restore(place)
        sample = self._samples[unit]
        self._content[unit] = _content(sample)
        self.pending.discard(unit)

    def _restore(self, place: _Place) -> None:
        """Marks a parameter as brought: its memory has the new weights."""
        parameter = place.entry.parameter
        poison = self._poisons.get(id(parameter))
        mark = None
        if poison is not None and parameter.data_ptr() != place.data.data_ptr():
            if parameter.data_ptr() != poison.data_ptr() or parameter.dtype != poison.dtype:
                if parameter.isnan().all():  # the module was converted while it waited
                    parameter.data.copy_(place.data)
                mark = _REPLACED
            else:
                parameter.data = place.data
        self._marks[id(parameter)] = mark or _mark_of(parameter)
        self._poisons.pop(id(parameter), None)  # last: an interrupt before it repeats all of this

    def bring_all(self, units: Iterable[int] | None = None) -> None:
        """Brings all of ``units``, or all pending ones; an interrupt takes effect only
        afterwards."""
        left = sorted(self.pending if units is None else self.pending.intersection(units))
        interrupt = None
        for unit in left:
            while unit in self.pending:
                try:
                    self.bring(unit)
                except KeyboardInterrupt as caught:
                    interrupt = caught
        if interrupt is not None:
            raise interrupt
