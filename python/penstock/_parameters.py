"""Which parameters are trained, and how they are cut into units and groups of the engine.

An engine group has the parameters of one dtype in a torch parameter group. A unit is brought and
released as a whole: a block of the module, or without a module a run of parameters of one engine
group. The cut decides the order in which the squares of the gradient are added up, so the reference
cuts in the same way.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from penstock import _dtypes
from penstock._model import (
    Entry,
    Group,
    UnitSpec,
    add_unit,
    check_entries,
    check_shape,
    model_text,
    owners,
)
from penstock.errors import InvalidArgumentError

# The max elements of a run, unless one parameter has more. The same for every configuration: with
# another cut a state could not be resumed, and the norm of a gradient would have other bits.
RUN_ELEMENTS = 1 << 20


class Partition(NamedTuple):
    """The cut of an optimizer's trained parameters."""

    groups: list[Group]
    units: list[UnitSpec]

    @property
    def device(self) -> torch.device:
        return self.units[0].entries[0].parameter.device

    def entries(self) -> Iterator[Entry]:
        for unit in self.units:
            yield from unit.entries

    def model(self) -> dict[str, Any]:
        """Returns the text ``model`` of the C interface."""
        return model_text(
            self.units,
            self.groups,
            lambda group: f"group {group.number}, {_dtypes.NAMES[group.dtype]}",
            scalar=[1],
        )


def _names(
    param_groups: Sequence[Mapping[str, Any]], model: torch.nn.Module | None
) -> dict[int, str]:
    """Names by the parameter's id: those that torch was given, the module's, or numbers."""
    of_model = {id(p): name for name, p in model.named_parameters()} if model else {}
    names: dict[int, str] = {}
    for number, group in enumerate(param_groups):
        given = group.get("param_names")
        for i, parameter in enumerate(group["params"]):
            name = given[i] if given else of_model.get(id(parameter))
            names[id(parameter)] = name or f"groups.{number}.{i}"
    return names


def trained(
    param_groups: Sequence[Mapping[str, Any]], model: torch.nn.Module | None = None
) -> list[Entry]:
    """Returns the parameters that need gradients, in the order of the groups, without a place."""
    names = _names(param_groups, model)
    found = []
    for number, group in enumerate(param_groups):
        for parameter in group["params"]:
            name = names[id(parameter)]
            check_shape(name, parameter)
            if parameter.requires_grad and parameter.numel() > 0:
                found.append(Entry(name, parameter, Group(number, parameter.dtype)))
    check_entries(found)
    if len({one.name for one in found}) != len(found):
        raise InvalidArgumentError("penstock: two parameters have the same name; name each its own")
    return found


def _runs(found: Sequence[Entry]) -> Iterator[list[Entry]]:
    """Consecutive parameters of one group and dtype, of at most RUN_ELEMENTS elements."""
    run: list[Entry] = []
    elements = 0
    for one in found:
        last = run[-1] if run else one
        fits = elements + one.parameter.numel() <= RUN_ELEMENTS
        if run and not (one.group == last.group and fits):
            yield run
            run, elements = [], 0
        run.append(one)
        elements += one.parameter.numel()
    if run:
        yield run


def _cut(
    found: Sequence[Entry], model: torch.nn.Module | None
) -> Iterator[tuple[str, list[Entry]]]:
    """Yields name and parameters of each unit; some have none."""
    left = {id(one.parameter): one for one in found}
    if model is not None:
        for name, module, whole in owners(model, sequential=False):
            own = [left.pop(id(p), None) for p in module.parameters(recurse=whole)]
            yield name or "the root", [one for one in own if one is not None]
    outside = [one for one in found if id(one.parameter) in left]
    for i, run in enumerate(_runs(outside)):
        yield f"run {i}", run


def _cut_as(
    found: Sequence[Entry], units: Sequence[Sequence[torch.nn.Parameter]]
) -> Iterator[tuple[str, list[Entry]]]:
    by_id = {id(one.parameter): one for one in found}
    for i, parameters in enumerate(units):
        yield f"unit {i}", [by_id.pop(id(p)) for p in parameters if id(p) in by_id]
    if by_id:
        missing = next(iter(by_id.values())).name
        raise InvalidArgumentError(f"penstock: parameter {missing} is in no unit; add it to one")


def partition(
    param_groups: Sequence[Mapping[str, Any]],
    model: torch.nn.Module | None = None,
    units: Sequence[Sequence[torch.nn.Parameter]] | None = None,
) -> Partition:
    """Cuts the trained parameters of an optimizer into groups and units of the engine."""
    found = trained(param_groups, model)
    result = Partition(list(dict.fromkeys(one.group for one in found)), [])
    for name, members in _cut(found, model) if units is None else _cut_as(found, units):
        add_unit(result.units, name, members)
    return result
