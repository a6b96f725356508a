"""Cuts a module whose parameters the engine keeps into units.

A block with all its submodules is one unit. Every other module that owns parameters is a unit with
these.
"""

from __future__ import annotations

import collections
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch

from penstock import _dtypes
from penstock._model import (
    Entry,
    Group,
    UnitSpec,
    add_unit,
    check_entries,
    model_text,
    owners,
)
from penstock.errors import InvalidArgumentError


class Plan(NamedTuple):
    """How a module is cut.

    Attributes:
        units: in the order in which the module declares them.
        users: for each module with hooks, the units that its own forward uses.
        blocks: the modules that are units with all their submodules.
        groups: of the engine, the frozen ones last.
    """

    units: Sequence[UnitSpec]
    users: Mapping[torch.nn.Module, Sequence[int]]
    blocks: frozenset[torch.nn.Module]
    groups: Sequence[Group]


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
        if type(parameter) is not torch.nn.Parameter:
            raise InvalidArgumentError(
                f"penstock: parameter {name} is a {type(parameter).__name__}; only plain parameters "
                "are offered"
            )
        if parameter.requires_grad and parameter not in numbers:
            raise InvalidArgumentError(
                f"penstock: parameter {name} needs a gradient and is in no parameter group; add it "
                "to one, or freeze it by requires_grad_(False)"
            )
        number = numbers[parameter] if parameter.requires_grad else -1
        entries[parameter] = Entry(name, parameter, Group(number, parameter.dtype))
    strangers = [p for p in numbers if p.numel() > 0 and p not in entries]
    if strangers:
        raise InvalidArgumentError(
            f"penstock: a parameter of shape {tuple(strangers[0].shape)} is in a parameter group "
            "and not in the model; give the groups of this model"
        )
    check_entries(list(entries.values()), have_values)
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

    A parameter that a block shares with another module is a unit of its own. Without
    ``have_values`` the module may be on the meta device.
    """
    entries = _entries(model, param_groups, have_values)
    found = list(owners(model, sequential=True))
    users = collections.defaultdict(list)
    blocks = set()
    for _, module, block in found:
        for parameter in module.parameters(recurse=block):
            users[parameter].append(module)
        if block:
            blocks.add(module)
    units: list[UnitSpec] = []
    unit_of: dict[torch.nn.Parameter, int] = {}

    def add(name: str, repeated: bool, members: Sequence[torch.nn.Parameter]) -> None:
        unit_of.update(dict.fromkeys(members, len(units)))
        add_unit(units, name, [entries[p] for p in members], repeated)

    for name, module, block in found:
        own = [p for p in module.parameters(recurse=block) if p in entries and p not in unit_of]
        shared = [p for p in own if len(users[p]) > 1 and not blocks.isdisjoint(users[p])]
        for parameter in shared:
            add(f"shared {entries[parameter].name}", False, [parameter])
        add(name or "(root)", block, [p for p in own if p not in unit_of])
    used = {
        module: sorted({unit_of[p] for p in module.parameters(recurse=block) if p in unit_of})
        for _, module, block in found
    }
    return Plan(units, used, frozenset(blocks), _order_groups(entries))


def text_of(plan_: Plan) -> dict[str, Any]:
    """Returns the model as the C interface takes it."""

    def name_of(group: Group) -> str:
        return f"{'frozen' if group.number < 0 else group.number} {_dtypes.NAMES[group.dtype]}"

    return model_text(plan_.units, plan_.groups, name_of, scalar=[])
