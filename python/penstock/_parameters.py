"""Which parameters are trained, and how they are cut into units and groups of the engine.

An engine group is what a torch parameter group has of one dtype. A unit is what is brought and let
go together: with a module a block of it, else a run of parameters of one engine group. The cut
decides in which order the squares of the gradient are added up, so the reference cuts alike.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from penstock import _dtypes
from penstock.errors import InvalidArgumentError

# The most elements of a run, unless one parameter has more. The same for every configuration: with
# another cut a state could not be continued, and the squares of a gradient were added up otherwise.
RUN_ELEMENTS = 1 << 20


class Entry(NamedTuple):
    """A trained parameter and its place."""

    parameter: torch.nn.Parameter
    name: str
    group: int  # index of the torch parameter group
    engine_group: int
    unit: int
    tensor: int  # within the unit


class EngineGroup(NamedTuple):
    group: int  # index of the torch parameter group
    dtype: torch.dtype


class Unit(NamedTuple):
    name: str
    entries: list[Entry]


class Partition(NamedTuple):
    """How the trained parameters of an optimizer are cut."""

    groups: list[EngineGroup]
    units: list[Unit]

    @property
    def device(self) -> torch.device:
        return self.units[0].entries[0].parameter.device

    def entries(self) -> Iterator[Entry]:
        for unit in self.units:
            yield from unit.entries

    def model(self) -> dict[str, Any]:
        """Returns the text ``model`` of the C interface (docs/c_api.md)."""
        units = [
            {
                "name": unit.name,
                "tensors": [
                    {
                        "name": entry.name,
                        "shape": list(entry.parameter.shape) or [1],
                        "group": entry.engine_group,
                    }
                    for entry in unit.entries
                ],
            }
            for unit in self.units
        ]
        groups = [
            {"name": f"group {group}, {_dtypes.NAMES[dtype]}", "dtype": _dtypes.NAMES[dtype]}
            for group, dtype in self.groups
        ]
        return {"units": units, "groups": groups}


class _Found(NamedTuple):
    parameter: torch.nn.Parameter
    name: str
    group: int


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


def _check(parameter: torch.Tensor, name: str) -> None:
    if parameter.device.type not in ("cpu", "cuda"):
        raise InvalidArgumentError(
            f"penstock: parameter {name} is on {parameter.device}; parameters are on the CPU or on "
            "a CUDA device"
        )
    if parameter.dtype not in _dtypes.NAMES:
        raise InvalidArgumentError(
            f"penstock: parameter {name} has dtype {parameter.dtype}; torch.float32, bfloat16 and "
            "float16 are trained"
        )
    if parameter.layout != torch.strided:
        raise InvalidArgumentError(
            f"penstock: parameter {name} has layout {parameter.layout}; only dense ones are trained"
        )


def trained(
    param_groups: Sequence[Mapping[str, Any]], model: torch.nn.Module | None = None
) -> list[_Found]:
    """Returns the parameters that need gradients, in the order of the groups."""
    names = _names(param_groups, model)
    found = [
        _Found(parameter, names[id(parameter)], number)
        for number, group in enumerate(param_groups)
        for parameter in group["params"]
        if parameter.requires_grad and parameter.numel() > 0
    ]
    for parameter, name, _ in found:
        _check(parameter, name)
    devices = {str(parameter.device) for parameter, _, _ in found}
    if len(devices) > 1:
        raise InvalidArgumentError(
            f"penstock: parameters are on {', '.join(sorted(devices))}; move them to one device, or "
            "make an optimizer for each"
        )
    if not found:
        raise InvalidArgumentError("penstock: no parameter needs a gradient, so nothing is trained")
    if len({name for _, name, _ in found}) != len(found):
        raise InvalidArgumentError("penstock: two parameters have the same name; name each its own")
    return found


def _runs(found: Sequence[_Found]) -> Iterator[list[_Found]]:
    """Consecutive parameters of one group and dtype, of at most RUN_ELEMENTS elements."""
    run: list[_Found] = []
    elements = 0
    for one in found:
        last = run[-1] if run else one
        alike = (one.group, one.parameter.dtype) == (last.group, last.parameter.dtype)
        if run and not (alike and elements + one.parameter.numel() <= RUN_ELEMENTS):
            yield run
            run, elements = [], 0
        run.append(one)
        elements += one.parameter.numel()
    if run:
        yield run


def owners(model: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module, bool]]:
    """Yields the modules that are units: name, module, and whether all that is in it belongs to it.

    A member of an outermost ModuleList whose members are of one class is a unit with all that is in
    it. Every other module is one with the parameters that it owns itself.
    """

    def walk(name: str, module: torch.nn.Module) -> Iterator[Any]:
        children = list(module.children())
        alike = len({type(child) for child in children}) == 1
        if isinstance(module, torch.nn.ModuleList) and len(children) > 1 and alike:
            for key, child in module.named_children():
                yield (f"{name}.{key}" if name else key), child, True
            return
        yield name, module, False
        for key, child in module.named_children():
            yield from walk(f"{name}.{key}" if name else key, child)

    yield from walk("", model)


def _cut(
    found: Sequence[_Found], model: torch.nn.Module | None
) -> Iterator[tuple[str, list[_Found]]]:
    """Yields name and parameters of each unit."""
    left = {id(one.parameter): one for one in found}
    if model is not None:
        for name, module, whole in owners(model):
            own = [left.pop(id(p), None) for p in module.parameters(recurse=whole)]
            members = [one for one in own if one is not None]
            if members:
                yield name or "the root", members
    outside = [one for one in found if id(one.parameter) in left]
    for i, run in enumerate(_runs(outside)):
        yield f"run {i}", run


def _cut_as(
    found: Sequence[_Found], units: Sequence[Sequence[torch.nn.Parameter]]
) -> Iterator[tuple[str, list[_Found]]]:
    by_id = {id(one.parameter): one for one in found}
    for i, parameters in enumerate(units):
        members = [by_id.pop(id(p)) for p in parameters if id(p) in by_id]
        if members:
            yield f"unit {i}", members
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
    groups: list[EngineGroup] = []
    for one in found:
        group = EngineGroup(one.group, one.parameter.dtype)
        if group not in groups:
            groups.append(group)
    cut = _cut(found, model) if units is None else _cut_as(found, units)
    result = Partition(groups, [])
    for name, members in cut:
        entries = [
            Entry(
                one.parameter,
                one.name,
                one.group,
                groups.index(EngineGroup(one.group, one.parameter.dtype)),
                len(result.units),
                i,
            )
            for i, one in enumerate(members)
        ]
        result.units.append(Unit(name, entries))
    return result
