"""A state file's bytes, read and forged from nothing but docs/state_format.md."""

import json
import random
import struct
from typing import Any

try:
    import xxhash
except ImportError as missing:
    raise SystemExit(
        "no xxhash for this Python; scripts/setup --tests installs python3-xxhash"
    ) from missing

import mutators

HEADER_BYTES = 4096
DESCRIPTOR_BYTES = 64
TILE_ENTRY_BYTES = 32
Range = tuple[int, int]

HEADER_U32 = (8, 12, 40, 44, 48, 52)
HEADER_U64 = (32, *range(56, 208, 8))
HEADER_U64_OF_2 = (*HEADER_U64, 208, 216, 224)
DESCRIPTOR_FIELDS = (
    (0, "I"),
    (4, "I"),
    (8, "Q"),
    (16, "Q"),
    (24, "B"),
    (25, "B"),
    (26, "B"),
    (27, "B"),
    (28, "B"),
    (32, "B"),
    (33, "B"),
    (34, "B"),
    (38, "H"),
    (40, "Q"),
    (48, "Q"),
    (56, "Q"),
)
DESCRIPTOR_FIELDS_OF_2 = (
    (0, "I"),
    (4, "I"),
    (8, "Q"),
    (16, "Q"),
    (24, "H"),
    (26, "H"),
    (28, "I"),
    (32, "Q"),
    (40, "Q"),
    (48, "Q"),
    (56, "Q"),
)
COMMIT_FIELDS = (*((at, "Q") for at in (8, 32, 40, 48, 56, 64, 72, 80)), (88, "I"), (92, "I"))
COMMIT_FIELDS_OF_2 = (*COMMIT_FIELDS, (96, "I"), (100, "I"), (104, "Q"), (112, "Q"), (248, "Q"))
TILE_FIELDS = ((0, "Q"), (8, "Q"), (16, "Q"), (24, "I"), (28, "I"))
LAYOUT_KEYS = [
    *("name", "elements", "tensors", "shape", "group", "offset", "modules"),
    *("groups", "frozen", "parameter_group", "planes", "role", "encoding", "block_bytes"),
]
BLOCK_ELEMENTS = 4096


def xxh3(data: bytes, seed: int = 0) -> int:
    """XXH3-64."""
    return int(xxhash.xxh3_64_intdigest(data, seed=seed))


class State:
    """The bytes of one file of a state, as its writer made them; changes are made in place."""

    def __init__(self, data: bytes) -> None:
        self.bytes = bytearray(data)
        self.uuid = bytes(self.bytes[16:32])
        self.version = self.get("I", 8)
        self.split = self.version == 1 and self.get("Q", 32) & 2 != 0
        self.tiles = self.get("Q", 80)
        self.layout = self.get("Q", 88)
        self.layout_bytes = self.get("Q", 96)
        self.descriptors = self.get("Q", 104)
        self.commits = (self.get("Q", 120), self.get("Q", 128))
        self.weights = (self.get("Q", 144), self.get("Q", 152))
        self.records = (self.get("Q", 160), self.get("Q", 168))
        self.path = self.get("I", 52)
        self.rank = self.get("I", 44)
        self.commit_head = 96 if self.version == 1 else 256
        text = bytes(self.bytes[self.layout : self.layout + self.layout_bytes])
        self.groups: list[Any] = [] if self.version == 1 else json.loads(text)["groups"]

    def get(self, kind: str, offset: int) -> int:
        """A number: B, H, I or Q as in struct."""
        return int(struct.unpack_from("<" + kind, self.bytes, offset)[0])

    def put(self, kind: str, offset: int, value: int) -> None:
        """Writes a number."""
        struct.pack_into("<" + kind, self.bytes, offset, value)

    def newest(self) -> int:
        """The offset of the newest commit."""
        return max(self.commits, key=lambda place: self.get("Q", place + 8))

    def holds_commit(self, place: int) -> bool:
        """Whether there is one in a place of this file."""
        return self.get("Q", place) != 0

    def descriptor(self, tile: int) -> int:
        """Where it lies."""
        return self.descriptors + DESCRIPTOR_BYTES * tile

    def entry(self, place: int, tile: int) -> int:
        """Where a commit says what it has of a tile."""
        return place + self.commit_head + TILE_ENTRY_BYTES * tile

    def path_of(self, tile: int) -> int:
        """The index of its file."""
        return self.get("H", self.descriptor(tile) + (38 if self.version == 1 else 24))

    def is_frozen(self, tile: int) -> bool:
        """Whether no update changes it."""
        return self.version > 1 and bool(self.group_of(tile)["frozen"])

    def group_of(self, tile: int) -> Any:
        """As the layout of version 2 describes it."""
        return self.groups[self.get("I", self.descriptor(tile) + 4)]

    def planes(self, tile: int) -> list[int]:
        """The bytes of each plane of a tile, the weight's first."""
        descriptor = self.descriptor(tile)
        elements = self.get("Q", descriptor + 16)
        if self.version == 1:
            count = self.get("B", descriptor + 25)
            dtypes = [self.get("B", descriptor + 32 + i) for i in range(count)]
            sizes = [2 if self.split else 4, *({1: 4, 2: 2, 4: 2}[dtype] for dtype in dtypes)]
            return [size * elements for size in sizes]
        blocks = elements // BLOCK_ELEMENTS
        planes = self.group_of(tile)["planes"]
        return [-(-blocks * plane["block_bytes"] // 4096) * 4096 for plane in planes]

    def parts(self, tile: int, slot: int) -> tuple[Range, Range]:
        """(begin, end) of a tile's weight and of its record in a slot."""
        offsets = self.descriptor(tile) + (40 if self.version == 1 else 32)
        weights = self.get("Q", 216) if self.is_frozen(tile) else self.weights[slot]
        weight = weights + self.get("Q", offsets)
        record = self.records[slot] + self.get("Q", offsets + 8)
        size, *states = self.planes(tile)
        return (weight, weight + size), (record, record + sum(states))

    def committed_parts(self, commits: "State") -> list[Range]:
        """What of this file the newest commit names, which lies in the file of path 0."""
        place = commits.newest()
        ranges: list[Range] = []
        for tile in range(self.tiles):
            if self.path_of(tile) == self.path:
                ranges.extend(self.parts(tile, commits.get("I", commits.entry(place, tile) + 24)))
        return ranges

    def checksums(self, tile: int, slot: int, version: int) -> tuple[int, int]:
        """Of the weight and of the record that a tile of this file has in a slot."""
        weight, (at, _) = self.parts(tile, slot)
        seed = xxh3(self.uuid + struct.pack("<QQ", (self.rank << 32) + tile, version))
        sums = b""
        for size in self.planes(tile)[1:]:
            sums += struct.pack("<Q", xxh3(bytes(self.bytes[at : at + size]), seed))
            at += size
        return xxh3(bytes(self.bytes[slice(*weight)]), seed), xxh3(sums, seed)

    def covered_head(self) -> list[Range]:
        """What of the head has a checksum."""
        return [
            (0, HEADER_BYTES),
            (self.layout, self.layout + self.layout_bytes),
            (self.descriptors, self.descriptors + DESCRIPTOR_BYTES * self.tiles),
        ]

    def before_slots(self) -> list[Range]:
        """What inspect looks at before the slots: heads and commit places, and no guards."""
        places = [(place, place + self.get("Q", 136)) for place in self.commits]
        return [(0, self.commits[0]), *places]

    def seal_head(self) -> None:
        """Makes the checksums of the head hold, as far as its sizes let it."""
        hashed = b"".join(
            bytes(self.bytes[begin : begin + size])
            for begin, size in (
                (self.get("Q", 88), self.get("Q", 96)),
                (self.get("Q", 104), self.get("Q", 112)),
            )
            if begin + size <= len(self.bytes)
        )
        self.put("Q", 200, xxh3(hashed))
        self.put("Q", 4088, xxh3(bytes(self.bytes[:4088])))

    def seal_commit(self, place: int) -> None:
        """Makes the checksum of a commit hold, as far as its size lets it."""
        size = self.get("Q", place + 32)
        if 8 <= size <= len(self.bytes) - place:
            self.put("Q", place + size - 8, xxh3(bytes(self.bytes[place : place + size - 8])))

    def commit_holds(self, place: int) -> bool:
        """Whether there is a whole commit in a place."""
        size = self.get("Q", place + 32)
        if not self.holds_commit(place) or not 8 <= size <= len(self.bytes) - place:
            return False
        whole = bytes(self.bytes[place : place + size - 8])
        return self.get("Q", place + size - 8) == xxh3(whole)

    def commit_text(self, place: int) -> Range:
        """Where the JSON text of a commit lies."""
        begin = self.entry(place, self.get("Q", place + 40))
        return begin, begin + self.get("Q", place + 48)


def read(path: str) -> State:
    """A whole file."""
    with open(path, "rb") as file:
        return State(file.read())


def check_understood(path: str) -> None:
    """A whole file's checksums, made again, are those that its writer made."""
    state = read(path)
    data = bytes(state.bytes)
    state.seal_head()
    for place in state.commits:
        if state.holds_commit(place):
            state.seal_commit(place)
    if bytes(state.bytes) != data:
        raise SystemExit(
            f"{path} is not as docs/state_format.md says, or not as this program reads it"
        )


def forge_header(rng: random.Random, state: State) -> str:
    """A number of the header."""
    wide = HEADER_U64 if state.version == 1 else HEADER_U64_OF_2
    kind, fields, bits = rng.choice([("I", HEADER_U32, 32), ("Q", wide, 64), ("Q", wide, 64)])
    field = rng.choice(fields)
    state.put(kind, field, mutators.number_near(rng, state.get(kind, field), bits))
    state.seal_head()
    return f"header field {field}"


def forge_descriptor(rng: random.Random, state: State) -> str:
    """A number of a descriptor, or two descriptors exchanged."""
    tile = rng.randrange(state.tiles)
    at = state.descriptor(tile)
    if rng.random() < 0.1:
        other = state.descriptor(rng.randrange(state.tiles))
        state.bytes[at : at + 64], state.bytes[other : other + 64] = (
            state.bytes[other : other + 64],
            state.bytes[at : at + 64],
        )
        state.seal_head()
        return "descriptors exchanged"
    field, kind = rng.choice(DESCRIPTOR_FIELDS if state.version == 1 else DESCRIPTOR_FIELDS_OF_2)
    bits = 8 * struct.calcsize("<" + kind)
    state.put(kind, at + field, mutators.number_near(rng, state.get(kind, at + field), bits))
    state.seal_head()
    return f"descriptor {tile} field {field}"


def forge_layout(rng: random.Random, state: State) -> str:
    """The layout's text, as long as it fits in its place."""
    text = bytes(state.bytes[state.layout : state.layout + state.layout_bytes])
    if rng.random() < 0.5:
        changed = json.dumps(
            mutators.mutate_value(rng, json.loads(text), LAYOUT_KEYS), separators=(",", ":")
        ).encode()
    else:
        changed = mutators.mutate_json(rng, text, LAYOUT_KEYS)
    changed = changed[: state.descriptors - state.layout]
    state.bytes[state.layout : state.descriptors] = changed.ljust(
        state.descriptors - state.layout, b"\0"
    )
    state.put("Q", 96, len(changed))
    state.seal_head()
    return "layout text"


def forge_commit(rng: random.Random, state: State) -> str:
    """A number of a commit or of one of its tiles."""
    place = rng.choice([place for place in state.commits if state.holds_commit(place)])
    if rng.random() < 0.5:
        field, kind = rng.choice(COMMIT_FIELDS if state.version == 1 else COMMIT_FIELDS_OF_2)
    else:
        field, kind = rng.choice(TILE_FIELDS)
        field += state.entry(0, rng.randrange(state.tiles))
    bits = 8 * struct.calcsize("<" + kind)
    state.put(kind, place + field, mutators.number_near(rng, state.get(kind, place + field), bits))
    state.seal_commit(place)
    return f"commit field {field}"


def forge_commit_text(rng: random.Random, state: State) -> str:
    """What a commit says of its run."""
    place = state.newest()
    begin, end = state.commit_text(place)
    text = bytes(state.bytes[begin:end])
    changed = mutators.mutate_json(
        rng, text, ["run", "row", "step", "arithmetic", "model", "n_head"]
    )
    changed = changed[:65536]
    if rng.random() < 0.5 and changed:
        try:
            changed = json.dumps(json.loads(changed), separators=(",", ":")).encode()[:65536]
        except (ValueError, RecursionError):
            pass  # it stays as it is
    size = begin - place + len(changed) + 8
    state.put("Q", place + 32, size)
    state.put("Q", place + 48, len(changed))
    state.bytes[begin : begin + len(changed)] = changed
    state.seal_commit(place)
    return "commit text"


def forge_tile(rng: random.Random, state: State) -> str:
    """The values of a tile, with its own checksums and the commit's."""
    place = state.newest()
    tile = rng.randrange(state.tiles)
    if state.path_of(tile) != state.path:
        return forge_commit(rng, state)
    entry = state.entry(place, tile)
    slot = state.get("I", entry + 24)
    for begin, end in state.parts(tile, slot):
        end = min(end, len(state.bytes))  # of a descriptor that was forged before
        values = rng.choice([b"\x00", b"\xff", b"\x7f\x80", b"\x80\x7f", rng.randbytes(64)])
        count = (end - begin) // len(values) + 1
        if rng.random() < 0.7:
            state.bytes[begin:end] = (values * count)[: end - begin]
    for offset, checksum in zip((8, 16), state.checksums(tile, slot, state.get("Q", entry))):
        state.put("Q", entry + offset, checksum)
    state.seal_commit(place)
    return f"values of tile {tile}"


def forge(rng: random.Random, data: bytes) -> tuple[bytes, str]:
    """The file with something else in it and every checksum right; what that is."""
    state = State(data)
    in_head: list[Any] = [
        forge_header,
        forge_header,
        forge_descriptor,
        forge_descriptor,
        forge_layout,
        forge_layout,
    ]
    in_commit: list[Any] = [forge_commit, forge_commit, forge_commit_text, forge_tile]
    has_commit = any(state.holds_commit(place) for place in state.commits)
    what = []
    for _ in range(rng.choice([1, 1, 1, 2])):
        try:
            what.append(rng.choice(in_head + in_commit if has_commit else in_head)(rng, state))
        except (struct.error, ValueError, IndexError, KeyError, UnicodeError):
            break  # the first change has left nothing that a second one could be made in
    return bytes(state.bytes), ", ".join(what)
