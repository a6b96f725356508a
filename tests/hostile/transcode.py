"""Turns states of format version 1 into version 2.

What version 1 cannot say is in it: three groups, of which one keeps a whole master where there was
a split one and one is frozen. Or it is what version 1 says, with groups of other names, so that a
training goes on from it.
"""

import struct
from typing import Callable

from state_bytes import State, read
from version2 import (
    ELEMENT,
    Json,
    Plan,
    Planes,
    committed_by,
    elements_of,
    group,
    layout_of,
    place_tensors,
    plane,
    shape_of,
)

STATES = {1: "lo", 2: "exp_avg", 3: "exp_avg_sq"}
ENCODINGS = {1: "fp32", 2: "bf16", 4: "int16"}


def planes_of_1(state: State) -> list[Json]:
    """Those of all its tiles."""
    at = state.descriptor(0)
    states = range(state.get("B", at + 25))
    return [
        plane("weight", "bf16" if state.split else "fp32"),
        *(
            plane(STATES[state.get("B", at + 26 + i)], ENCODINGS[state.get("B", at + 32 + i)])
            for i in states
        ),
    ]


def tensors_of_1(files: list[State], place: int) -> dict[str, Planes]:
    """What a commit has of each tensor."""
    first = files[0]
    planes = planes_of_1(first)
    layout = layout_of(first)
    flat: list[dict[str, bytearray]] = [
        {plane["role"]: bytearray() for plane in planes} for _ in layout["modules"]
    ]
    for tile in range(first.tiles):
        file = files[first.path_of(tile)]
        slot = first.get("I", first.entry(place, tile) + 24)
        weight, (at, _) = file.parts(tile, slot)
        size, *sizes = file.planes(tile)
        module = flat[first.get("I", first.descriptor(tile))]
        module["weight"] += file.bytes[slice(*weight)]
        for state, size in zip(planes[1:], sizes):
            module[state["role"]] += file.bytes[at : at + size]
            at += size
    tensors = {}
    for module, description in zip(flat, layout["modules"]):
        for tensor in description["tensors"]:
            begin, end = tensor["offset"], tensor["offset"] + elements_of(tensor)
            tensors[tensor["name"]] = {
                plane["role"]: bytes(
                    module[plane["role"]][
                        begin * ELEMENT[plane["encoding"]] : end * ELEMENT[plane["encoding"]]
                    ]
                )
                for plane in planes
            }
    return tensors


def with_whole_master(split: Planes) -> Planes:
    """A bf16 weight and what it lacks, as an fp32 master and that rounded to nearest even."""
    masters = []
    for hi, lo in zip(
        struct.iter_unpack("<H", split["weight"]), struct.iter_unpack("<h", split["lo"])
    ):
        masters.append(((hi[0] << 16) + lo[0]) % (1 << 32))
    rounded = [(bits + 0x7FFF + (bits >> 16 & 1) >> 16) & 0xFFFF for bits in masters]
    return {
        **split,
        "weight": struct.pack(f"<{len(rounded)}H", *rounded),
        "master": struct.pack(f"<{len(masters)}I", *masters),
    }


def mixed(layout: Json, planes: list[Json]) -> Json:
    """Vectors with a whole master where the master is split; positions and a matrix frozen."""
    whole = planes
    if planes[1]["role"] == "lo":
        whole = [planes[0], plane("master", "fp32"), *planes[2:]]
    for module in layout["modules"]:
        for tensor in module["tensors"]:
            if tensor["name"] in ("wpe.weight", "h.0.mlp.c_proj.weight"):
                tensor["group"] = 2
    layout["groups"] = [
        group("matrices", 0, planes),
        group("vectors", 3, whole),
        group("base", 0, planes[:1], frozen=True),
    ]
    return layout


def renamed(layout: Json, planes: list[Json]) -> Json:
    """The groups of version 1, with other names."""
    layout["groups"] = [group("matrices", 0, planes), group("vectors", 1, planes)]
    return layout


Change = Callable[[Json, list[Json]], Json]


def transcode(paths: list[str], change: Change) -> None:
    """Replaces the files of a state of version 1, in the order of their paths."""
    old = [read(path) for path in paths]
    first = old[0]
    layout = change(layout_of(first), planes_of_1(first))
    place_tensors(layout)
    plan = Plan(layout, shape_of(first))
    new = plan.files()
    whole = [
        tensor["name"]
        for module in layout["modules"]
        for tensor in module["tensors"]
        if any(plane["role"] == "master" for plane in layout["groups"][tensor["group"]]["planes"])
    ]
    # Of the older commit first: frozen tiles are those of the newest.
    places = [place for place in first.commits if first.holds_commit(place)]
    for place in sorted(places, key=lambda place: first.get("Q", place + 8)):
        tensors = tensors_of_1(old, place)
        for name in whole:
            tensors[name] = with_whole_master(tensors[name])
        plan.write_tiles(new, tensors, committed_by(first, place)[1])
    plan.write_commits(new, first)
    for path, state in zip(paths, new):
        with open(path, "wb") as file:
            file.write(state.bytes)
