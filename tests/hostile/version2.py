"""Writes states of format version 2, from nothing but docs/state_format.md."""

import dataclasses
import json
import struct
from typing import Any, Iterator

from state_bytes import BLOCK_ELEMENTS, HEADER_BYTES, TILE_ENTRY_BYTES, State

ALIGNMENT = 4096
ROOM = 128 << 10
SESSION = 0x5E5510
BLOCK_BYTES = {"fp32": 16384, "bf16": 8192, "fp16": 8192, "int16": 8192, "blockwise8": 4160}
ELEMENT = {name: size // BLOCK_ELEMENTS for name, size in BLOCK_BYTES.items()}
Json = dict[str, Any]
Planes = dict[str, bytes]  # by role


def round_up(size: int, unit: int = ALIGNMENT) -> int:
    """To a multiple."""
    return -(-size // unit) * unit


def plane(role: str, encoding: str) -> Json:
    """As a group of the layout names it."""
    return {"role": role, "encoding": encoding, "block_bytes": BLOCK_BYTES[encoding]}


def group(name: str, parameter_group: int, planes: list[Json], frozen: bool = False) -> Json:
    """As the layout names it."""
    return {
        "name": name,
        "parameter_group": parameter_group,
        "planes": planes,
        "frozen": frozen,
    }


def layout_of(state: State) -> Json:
    """Of either version."""
    layout: Json = json.loads(state.bytes[state.layout : state.layout + state.layout_bytes])
    return layout


def elements_of(tensor: Json) -> int:
    """The product of its sizes."""
    product = 1
    for size in tensor["shape"]:
        product *= size
    return product


@dataclasses.dataclass
class Shape:
    """What the header of a state says beside its layout."""

    uuid: bytes
    slots: int
    paths: int
    tile_elements: int
    world_size: int = 1
    rank: int = 0


@dataclasses.dataclass
class Tile:
    """A descriptor."""

    module: int
    group: int
    begin: int
    elements: int
    path: int = 0
    weight: int = 0
    record: int = 0


def place_tensors(layout: Json) -> None:
    """Gives each tensor its offset, and each module its size."""
    for module in layout["modules"]:
        next_free, last = 0, -1
        for tensor in sorted(module["tensors"], key=lambda tensor: tensor["group"]):
            if tensor["group"] != last:
                next_free, last = round_up(next_free, BLOCK_ELEMENTS), tensor["group"]
            tensor["offset"] = next_free
            next_free += elements_of(tensor)
        module["elements"] = round_up(next_free, BLOCK_ELEMENTS)


def spans_of(layout: Json, module: Json) -> list[tuple[int, int, int]]:
    """(group, begin, end) of what a module has of each group, padding included."""
    spans: dict[int, tuple[int, int]] = {}
    for tensor in sorted(module["tensors"], key=lambda tensor: tensor["group"]):
        begin, end = tensor["offset"], tensor["offset"] + elements_of(tensor)
        spans[tensor["group"]] = (spans.get(tensor["group"], (begin, 0))[0], end)
    return [(of, begin, round_up(end, BLOCK_ELEMENTS)) for of, (begin, end) in spans.items()]


def share_of(layout: Json, module: Json, shape: Shape) -> Iterator[tuple[int, int, int]]:
    """(group, begin, end) of what a rank has of them."""
    sections: list[list[tuple[int, int, int]]] = []

    def stored(of: int) -> tuple[list[Json], bool]:
        return layout["groups"][of]["planes"], layout["groups"][of]["frozen"]

    for span in spans_of(layout, module):
        if sections and stored(sections[-1][-1][0]) == stored(span[0]):
            sections[-1].append(span)
        else:
            sections.append([span])
    for section in sections:
        start, end = section[0][1], section[-1][2]
        share = round_up((end - start) // BLOCK_ELEMENTS, shape.world_size) // shape.world_size
        first = min(end, start + shape.rank * share * BLOCK_ELEMENTS)
        last = min(end, first + share * BLOCK_ELEMENTS)
        for of, begin, stop in section:
            if max(begin, first) < min(stop, last):
                yield of, max(begin, first), min(stop, last)


def sizes_of(layout: Json, tile: Tile) -> list[int]:
    """The bytes of each plane of a tile."""
    blocks = tile.elements // BLOCK_ELEMENTS
    planes = layout["groups"][tile.group]["planes"]
    return [round_up(blocks * plane["block_bytes"]) for plane in planes]


class Plan:
    """Where everything lies in the files of a state."""

    def __init__(self, layout: Json, shape: Shape) -> None:
        self.layout, self.shape = layout, shape
        self.tiles = [
            Tile(number, of, at, min(shape.tile_elements, end - at))
            for number, module in enumerate(layout["modules"])
            for of, begin, end in share_of(layout, module, shape)
            for at in range(begin, end, shape.tile_elements)
        ]
        self.regions = [{"weight": 0, "record": 0, "frozen": 0} for _ in range(shape.paths)]
        for number, tile in enumerate(self.tiles):
            tile.path = number % shape.paths
            frozen = layout["groups"][tile.group]["frozen"]
            region = self.regions[tile.path]
            weight, *record = sizes_of(layout, tile)
            tile.weight = region["frozen" if frozen else "weight"]
            tile.record = 0 if frozen else region["record"]
            region["frozen" if frozen else "weight"] += weight
            region["record"] += sum(record)

    def files(self) -> list[State]:
        """All of them, with heads and without commits and tiles."""
        return [self.file(path) for path in range(self.shape.paths)]

    def file(self, path: int) -> State:
        """That of one path."""
        shape, region = self.shape, self.regions[path]
        text = json.dumps(
            self.layout, sort_keys=True, separators=(",", ":"), ensure_ascii=False
        ).encode("utf-8", "surrogatepass")
        descriptors = b"".join(
            struct.pack(
                "<IIQQH6xQQ16x",
                *(tile.module, tile.group, tile.begin, tile.elements),
                *(tile.path, tile.weight, tile.record),
            )
            for tile in self.tiles
        )
        place_bytes = round_up(256 + TILE_ENTRY_BYTES * len(self.tiles) + 8 + ROOM)
        descriptors_at = HEADER_BYTES + round_up(len(text))
        commits_at = descriptors_at + round_up(len(descriptors))
        weights_at = [commits_at + 2 * place_bytes]
        records_at = [weights_at[0] + region["weight"]]
        end = records_at[0] + region["record"]
        if shape.slots == 2:
            weights_at.append(end)
            records_at.append(end + region["weight"])
            end = records_at[1] + region["record"]
        size = end + region["frozen"]
        elements = sum(
            elements_of(tensor) for module in self.layout["modules"] for tensor in module["tensors"]
        )
        header = struct.pack(
            "<8sII16sQ4I18Q",
            *(b"PENSTOCK", 2, 0, shape.uuid, 1 if shape.slots == 2 else 0),
            *(shape.world_size, shape.rank, shape.paths, path, ALIGNMENT, shape.tile_elements),
            *(elements, len(self.tiles), HEADER_BYTES, len(text), descriptors_at),
            *(len(descriptors), commits_at, commits_at + place_bytes, place_bytes),
            *(weights_at[0], weights_at[-1], records_at[0], records_at[-1], size, 0, size),
        )
        data = bytearray(size)
        for at, part in (
            (0, header),
            (208, struct.pack("<QQQ", ROOM, end, region["frozen"])),
            (HEADER_BYTES, text),
            (descriptors_at, descriptors),
        ):
            data[at : at + len(part)] = part
        file = State(bytes(data))
        file.seal_head()
        return file

    def write_tiles(self, files: list[State], tensors: dict[str, Planes], slot: int) -> None:
        """Puts what tensors have into the tiles of a slot; frozen ones lie behind the slots."""
        for number, tile in enumerate(self.tiles):
            file = files[tile.path]
            (at, _), (record, _) = file.parts(number, slot)
            planes = self.layout["groups"][tile.group]["planes"]
            for plane, size in zip(planes, sizes_of(self.layout, tile)):
                file.bytes[at : at + size] = self.values(tile, plane, tensors).ljust(size, b"\0")
                at = record if plane["role"] == "weight" else at + size

    def values(self, tile: Tile, plane: Json, tensors: dict[str, Planes]) -> bytes:
        """Of a plane of a tile, with zeros between tensors."""
        element = ELEMENT[plane["encoding"]]
        values = bytearray(element * tile.elements)
        for tensor in self.layout["modules"][tile.module]["tensors"]:
            offset = tensor["offset"] - tile.begin
            begin, end = max(0, offset), min(tile.elements, offset + elements_of(tensor))
            if tensor["group"] == tile.group and begin < end:
                part = slice(element * (begin - offset), element * (end - offset))
                values[element * begin : element * end] = tensors[tensor["name"]][plane["role"]][
                    part
                ]
        return bytes(values)

    def write_commits(self, files: list[State], old: State) -> None:
        """What the commits of a state say, in their places, of the tiles that are there now."""
        for new_place, old_place in zip(files[0].commits, old.commits):
            if old.holds_commit(old_place):
                self.write_commit(files, new_place, old, old_place)

    def write_commit(self, files: list[State], place: int, old: State, old_place: int) -> None:
        """One of them."""
        first, (version, slot) = files[0], committed_by(old, old_place)
        text = bytes(old.bytes[slice(*old.commit_text(old_place))])
        entries = b""
        for number, tile in enumerate(self.tiles):
            at = (0, 0) if first.is_frozen(number) else (version, slot)
            sums = files[tile.path].checksums(number, at[1], at[0])
            entries += struct.pack("<QQQI4x", at[0], *sums, at[1])
        size = first.commit_head + len(entries) + len(text) + 8
        head = bytes(old.bytes[old_place : old_place + 92]).ljust(first.commit_head, b"\0")
        record = bytearray(head + entries + text)
        struct.pack_into("<QQQ", record, 32, size, len(self.tiles), len(text))
        struct.pack_into("<IIIQ", record, 92, self.shape.rank, self.shape.world_size, 0, SESSION)
        first.bytes[place : place + size - 8] = record
        first.seal_commit(place)


def committed_by(state: State, place: int) -> tuple[int, int]:
    """The version and the slot of the tiles that a commit updated last."""
    entries = (state.entry(place, tile) for tile in range(state.tiles))
    return max((state.get("Q", entry), state.get("I", entry + 24)) for entry in entries)


def shape_of(state: State) -> Shape:
    """Of a whole state, from its first file."""
    slots = 2 if state.get("Q", 32) & 1 else 1
    return Shape(state.uuid, slots, state.get("I", 48), state.get("Q", 64))
