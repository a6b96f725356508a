"""Cuts a module into units: what is brought and let go together (docs/c_api.md, "The model").

Blocks are the members of outermost lists whose members are of one class, as the layers of a
transformer are; a block is one unit with all that is in it. Every other module that owns parameters
itself is a unit with these.
"""

from __future__ import annotations

import collections
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from penstock import _dtypes
from penstock.errors import InvalidArgumentError


class Group(NamedTuple):
    """A group of the engine: what has one set of scalars and one dtype."""

    number: int  # of the optimizer's parameter group; -1: frozen
    dtype: torch.dtype


class Entry(NamedTuple):
    """A parameter within its unit."""

    name: str
    parameter: torch.nn.Parameter
    group: Group

    @property
    def trained(self) -> bool:
        return self.group.number >= 0


class UnitSpec(NamedTuple):
    name: str
    repeated: bool
    entries: Sequence[Entry]


class Plan(NamedTuple):
    """How a module is cut.

    Attributes:
        units: in the order in which the module declares them.
        users: for each module that gets hooks, the units that its forward uses by itself.
        blocks: the modules that are units with all that is in them.
        groups: of the engine, the frozen ones last.
    """

    units: Sequence[UnitSpec]
    users: Mapping[torch.nn.Module, Sequence[int]]
    blocks: frozenset[torch.nn.Module]
    groups: Sequence[Group]


def _is_list_of_blocks(module: torch.nn.Module) -> bool:
    """Whether the children are repeated blocks. Of a Sequential, those that have modules inside."""
    children = list(module.children())
    if len(children) < 2 or len({type(child) for child in children}) != 1:
        return False
    if isinstance(module, torch.nn.Sequential):
        return any(True for _ in children[0].children())
    return isinstance(module, torch.nn.ModuleList)


def _owners(model: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module, bool]]:
    """Yields name, module, and whether it is a block, of all modules that use parameters.

    Those that use parameters only by modules in them are among them, if they can be called.
    """
    seen: set[torch.nn.Module] = set()

    def walk(name: str, module: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module, bool]]:
        if module in seen:
            return
        seen.add(module)
        blocks = _is_list_of_blocks(module)
        called = type(module).forward is not torch.nn.Module.forward
        if next(module.parameters(recurse=called), None) is not None:
            yield name, module, False
        for key, child in module.named_children():
            path = f"{name}.{key}" if name else key
            if blocks and child not in seen:
                seen.update(child.modules())
                yield path, child, True
            else:
                yield from walk(path, child)

    yield from walk("", model)


def _check(parameter: torch.nn.Parameter, name: str, have_values: bool) -> None:
    problem = None
    if isinstance(parameter, torch.nn.parameter.UninitializedParameter):
        problem = "has no shape yet; run the module once before penstock.initialize"
    elif parameter.device.type == "meta" and not have_values:
        pass
    elif parameter.device.type == "meta":
        problem = "has no values (it is on the meta device); load or initialize the weights first"
    elif parameter.device.type not in ("cpu", "cuda"):
        problem = f"is on {parameter.device}; move the model to the CPU or to a CUDA device"
    elif parameter.dtype not in _dtypes.NAMES:
        problem = f"is of {parameter.dtype}; only float32, bfloat16 and float16 are offered"
    elif type(parameter) is not torch.nn.Parameter:
        problem = f"is a {type(parameter).__name__}; only plain parameters are offered"
    if problem is not None:
        raise InvalidArgumentError(f"penstock: parameter {name} {problem}")


def _group_of(param_groups: Sequence[Mapping[str, Any]]) -> dict[torch.nn.Parameter, int]:
    return {p: number for number, group in enumerate(param_groups) for p in group["params"]}


def _entries(
    model: torch.nn.Module, param_groups: Sequence[Mapping[str, Any]], have_values: bool
) -> dict[torch.nn.Parameter, Entry]:
    numbers = _group_of(param_groups)
    entries = {}
    for name, parameter in model.named_parameters():
        if parameter.numel() == 0:
            continue
        _check(parameter, name, have_values)
        if parameter.requires_grad and parameter not in numbers:
            raise InvalidArgumentError(
                f"penstock: parameter {name} needs a gradient and is in no parameter group; add it "
                "to one, or freeze it by requires_grad_(False)"
            )
        number = numbers[parameter] if parameter.requires_grad else -1
        entries[parameter] = Entry(name, parameter, Group(number, parameter.dtype))
    devices = {str(entry.parameter.device) for entry in entries.values()}
    if len(devices) > 1:
        raise InvalidArgumentError(
            f"penstock: parameters are on {', '.join(sorted(devices))}; move the model to one device"
        )
    strangers = [p for p in numbers if p.numel() > 0 and p not in entries]
    if strangers:
        raise InvalidArgumentError(
            f"penstock: a parameter of shape {tuple(strangers[0].shape)} is in a parameter group "
            "and not in the model; give the groups of this model"
        )
    if not any(entry.trained for entry in entries.values()):
        raise InvalidArgumentError("penstock: no parameter needs a gradient, so nothing is trained")
    return entries


def _order_groups(entries: Mapping[torch.nn.Parameter, Entry]) -> list[Group]:
    groups = list(dict.fromkeys(entry.group for entry in entries.values()))
    trained = sorted((g for g in groups if g.number >= 0), key=lambda g: g.number)
    return trained + [g for g in groups if g.number < 0]


def plan(
    model: torch.nn.Module,
    param_groups: Sequence[Mapping[str, Any]],
    have_values: bool = True,
) -> Plan:
    """Cuts a module whose trained parameters are in ``param_groups``.

    A parameter that a block shares with another module is a unit of its own. A module that is only
    looked at need not ``have_values``: it may be on the meta device.
    """
    entries = _entries(model, param_groups, have_values)
    owners = list(_owners(model))
    users = collections.defaultdict(list)
    blocks = set()
    for _, module, block in owners:
        for parameter in module.parameters(recurse=block):
            users[parameter].append(module)
        if block:
            blocks.add(module)
    units: list[UnitSpec] = []
    unit_of: dict[torch.nn.Parameter, int] = {}

    def add(name: str, repeated: bool, members: Sequence[torch.nn.Parameter]) -> None:
        if members:
            unit_of.update(dict.fromkeys(members, len(units)))
            units.append(UnitSpec(name, repeated, [entries[p] for p in members]))

    for name, module, block in owners:
        own = [p for p in module.parameters(recurse=block) if p in entries and p not in unit_of]
        shared = [p for p in own if len(users[p]) > 1 and not blocks.isdisjoint(users[p])]
        for parameter in shared:
            add(f"shared {entries[parameter].name}", False, [parameter])
        add(name or "(root)", block, [p for p in own if p not in unit_of])
    used = {
        module: sorted({unit_of[p] for p in module.parameters(recurse=block) if p in unit_of})
        for _, module, block in owners
    }
    return Plan(units, used, frozenset(blocks), _order_groups(entries))


def model_text(plan_: Plan) -> dict[str, Any]:
    """Returns the model as the C interface takes it."""
    numbers = {group: i for i, group in enumerate(plan_.groups)}
    return {
        "units": [
            {
                "name": unit.name,
                "repeated": unit.repeated,
                "tensors": [
                    {
                        "name": entry.name,
                        "shape": list(entry.parameter.shape),
                        "group": numbers[entry.group],
                    }
                    for entry in unit.entries
                ],
            }
            for unit in plan_.units
        ],
        "groups": [
            {
                "name": f"frozen {_dtypes.NAMES[group.dtype]}"
                if group.number < 0
                else f"{group.number} {_dtypes.NAMES[group.dtype]}",
                "dtype": _dtypes.NAMES[group.dtype],
                "frozen": group.number < 0,
            }
            for group in plan_.groups
        ],
    }
