"""The engine's view of parameters (docs/c_api.md, "The model"): groups, and units of entries.

Each level cuts a module into units in its own way: _parameters.py, and _units.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch.nn.parameter import UninitializedParameter
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from penstock import _dtypes
from penstock.errors import InvalidArgumentError


class Group(NamedTuple):
    """A group of the engine: parameters with the same scalars and dtype."""

    number: int  # of the optimizer's parameter group; -1: frozen
    dtype: torch.dtype


class Entry(NamedTuple):
    """A parameter and its place."""

    name: str
    parameter: torch.nn.Parameter
    group: Group
    unit: int = -1
    tensor: int = -1  # within the unit

    @property
    def trained(self) -> bool:
        return self.group.number >= 0


class UnitSpec(NamedTuple):
    """A unit: tensors that are brought and released together."""

    name: str
    repeated: bool
    entries: Sequence[Entry]


def add_unit(
    units: list[UnitSpec], name: str, members: Sequence[Entry], repeated: bool = False
) -> None:
    """Adds a unit of some entries, unless there are none, and gives these their place."""
    if members:
        placed = [entry._replace(unit=len(units), tensor=i) for i, entry in enumerate(members)]
        units.append(UnitSpec(name, repeated, placed))


def owners(model: torch.nn.Module, sequential: bool) -> Iterator[tuple[str, torch.nn.Module, bool]]:
    """Yields name, module, and whether it is a block, of all modules that use parameters.

    Blocks are the members of outermost lists whose members are of one class, such as the layers of
    a transformer; modules in a block belong to it. Modules that use parameters only through their
    submodules are among the others, if they can be called.

    Args:
        sequential: whether a ``Sequential`` of modules that have others in them is such a list, as
            a ``ModuleList`` is.
    """
    seen: set[torch.nn.Module] = set()

    def is_list_of_blocks(module: torch.nn.Module) -> bool:
        children = list(module.children())
        if len(children) < 2 or len({type(child) for child in children}) != 1:
            return False
        if isinstance(module, torch.nn.Sequential):
            return sequential and any(True for _ in children[0].children())
        return isinstance(module, torch.nn.ModuleList)

    def walk(name: str, module: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module, bool]]:
        if module in seen:
            return
        seen.add(module)
        blocks = is_list_of_blocks(module)
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


def check_shape(name: str, parameter: torch.Tensor) -> None:
    """Raises if a parameter has no shape yet."""
    if isinstance(parameter, UninitializedParameter):
        raise InvalidArgumentError(
            f"penstock: parameter {name} has no shape yet; run the module once before"
        )


def check_entries(entries: Sequence[Entry], have_values: bool = True) -> None:
    """Raises if the engine cannot train some parameters.

    Args:
        have_values: False: parameters may be on the meta device.
    """
    for entry in entries:
        parameter, problem = entry.parameter, None
        if parameter.device.type == "meta":
            if have_values:
                problem = (
                    "has no values (it is on the meta device); load or initialize the weights first"
                )
        elif parameter.device.type not in ("cpu", "cuda"):
            problem = f"is on {parameter.device}; move it to the CPU or to a CUDA device"
        if parameter.dtype not in _dtypes.NAMES:
            problem = f"is of {parameter.dtype}; only float32, bfloat16 and float16 are offered"
        elif parameter.layout != torch.strided:
            problem = f"has layout {parameter.layout}; only dense ones are offered"
        elif is_traceable_wrapper_subclass(parameter):
            problem = (
                f"is a {type(parameter).__name__}, which has no memory of its own; give plain "
                "parameters (penstock takes the place of FSDP's fully_shard)"
            )
        if problem is not None:
            raise InvalidArgumentError(f"penstock: parameter {entry.name} {problem}")
    devices = {str(entry.parameter.device) for entry in entries}
    if len(devices) > 1:
        raise InvalidArgumentError(
            f"penstock: parameters are on {', '.join(sorted(devices))}; move them to one device"
        )
    if not any(entry.trained for entry in entries):
        raise InvalidArgumentError("penstock: no parameter needs a gradient, so nothing is trained")


def members_of(entries: Iterable[Entry]) -> Iterator[tuple[str, list[int], str, int]]:
    """Yields the parts of a training's identity (_rules.identity)."""
    for entry in entries:
        dtype = _dtypes.NAMES[entry.parameter.dtype]
        yield entry.name, list(entry.parameter.shape), dtype, entry.group.number


def model_text(
    units: Sequence[UnitSpec],
    groups: Sequence[Group],
    name_of: Callable[[Group], str],
    scalar: list[int],
) -> dict[str, Any]:
    """Returns a model as the C interface takes it.

    Args:
        name_of: gives groups their names.
        scalar: the shape that parameters without dimensions have in state files.
    """
    numbers = {group: i for i, group in enumerate(groups)}
    return {
        "units": [
            {
                "name": unit.name,
                "repeated": unit.repeated,
                "tensors": [
                    {
                        "name": entry.name,
                        "shape": list(entry.parameter.shape) or scalar,
                        "group": numbers[entry.group],
                    }
                    for entry in unit.entries
                ],
            }
            for unit in units
        ],
        "groups": [
            {
                "name": name_of(group),
                "dtype": _dtypes.NAMES[group.dtype],
                "frozen": group.number < 0,
            }
            for group in groups
        ],
    }
