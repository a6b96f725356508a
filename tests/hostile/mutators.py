"""Changes of bytes and of JSON that no writer makes; functions of the random numbers alone."""

import copy
import json
import random
from typing import Any

NUMBERS: list[Any] = [
    0,
    -1,
    1,
    2,
    3,
    7,
    4095,
    4096,
    65536,
    10**7,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**32,
    2**45,
    2**53,
    2**60,
    2**63 - 1,
    2**63,
    2**64 - 1,
    2**64,
    -(2**63),
    10**30,
    0.5,
    -0.0,
    1e-320,
    1e-8,
    1.5,
    1e30,
    1e308,
    float("nan"),
    float("inf"),
    float("-inf"),
]
STRINGS = [
    "",
    " ",
    "a",
    "auto",
    "none",
    "nvme",
    "cpu",
    "\x00",
    "a\x00b",
    "a\nb",
    "é",
    "\ud800",
    "../x",
    ".",
    "..",
    "./run",
    "outside",
    "outside/victim.txt",
    "outside/link",
    "/dev/null",
    "/dev/zero",
    "/proc/self/mem",
    "/proc/self/fd/0",
    "nowhere/x",
    "x" * 300,
    "x" * 70000,
    "%s%n",
    "{}",
    "1e5",
    "-1",
    "true",
]
OTHERS: list[Any] = [
    None,
    True,
    False,
    [],
    {},
    [[]],
    [None],
    {"": None},
    {"a": {"b": {"c": 1}}},
    ["nvme", "nvme"],
]


def hostile_value(rng: random.Random) -> Any:
    """A value that may stand anywhere."""
    return copy.deepcopy(rng.choice(rng.choice([NUMBERS, NUMBERS, STRINGS, OTHERS])))


def of_its_kind(rng: random.Random, value: Any) -> Any:
    """A hostile value of the type that belongs there, so that its meaning is looked at."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, (int, float)):
        return rng.choice(NUMBERS)
    if isinstance(value, str):
        return rng.choice(STRINGS)
    return hostile_value(rng)


def number_near(rng: random.Random, right: int, bits: int) -> int:
    """Another unsigned number of that many bits: near the right one, or near an end."""
    choices = [
        right + 1,
        right - 1,
        right + 4096,
        right - 4096,
        right * 2,
        right // 2,
        0,
        1,
        4095,
        4096,
        2**32 - 1,
        2**32,
        2**48,
        2**63 - 1,
        2**63,
        2**64 - 4096,
        2**64 - 1,
        1 << rng.randrange(64),
        right ^ (1 << rng.randrange(bits)),
        rng.getrandbits(bits),
    ]
    return rng.choice(choices) % (1 << bits)


def places(value: Any) -> list[tuple[Any, Any]]:
    """(container, key) of every value below this one."""
    found: list[tuple[Any, Any]] = []
    items = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value) if isinstance(value, list) else ()
    )
    for key, child in items:
        found.append((value, key))
        found.extend(places(child))
    return found


def mutate_value(rng: random.Random, value: Any, known_keys: list[str]) -> Any:
    """A copy of a JSON value with one change of its structure."""
    value = copy.deepcopy(value)
    spots = places(value)
    if not spots or rng.random() < 0.02:
        return hostile_value(rng)
    container, key = rng.choice(spots)
    action = rng.random()
    if action < 0.35:
        container[key] = of_its_kind(rng, container[key])
    elif action < 0.55:
        container[key] = hostile_value(rng)
    elif action < 0.65 and isinstance(container[key], int) and not isinstance(container[key], bool):
        container[key] = number_near(rng, container[key], 64)
    elif action < 0.75:
        del container[key]
    elif action < 0.82:
        count = rng.choice([1, 2, 65])
        container[key] = [copy.deepcopy(container[key]) for _ in range(count)]
    elif action < 0.9 and isinstance(container, dict):
        name = rng.choice([*known_keys, *STRINGS, str(key) + "s"])
        container[name] = hostile_value(rng)
    elif isinstance(container, list):
        container.insert(rng.randrange(len(container) + 1), copy.deepcopy(rng.choice(container)))
    else:
        other, name = rng.choice(spots)
        container[key], other[name] = other[name], container[key]
    return value


def dump(value: Any) -> bytes:
    """As JSON; surrogates and what is no number in JSON as they are."""
    return json.dumps(value, indent=1, ensure_ascii=False).encode("utf-8", "surrogatepass")


def mutate_text(rng: random.Random, text: bytes) -> bytes:
    """A change that JSON's syntax may not survive."""
    at = rng.randrange(len(text) + 1)
    action = rng.randrange(8)
    if action == 0:
        return text[:at]
    if action == 1:
        return (
            text[:at]
            + rng.choice(
                [b"\x00", b"\xff\xfe", b"\xef\xbb\xbf", b"//", b"/*", b",", b"}", b"1e999", b"-"]
            )
            + text[at:]
        )
    if action == 2:
        depth = rng.choice([100, 1000, 200000])
        return rng.choice([b"[" * depth, b'{"a":' * depth, b"[" * depth + b"]" * depth])
    if action == 3:
        keys = [i for i in range(len(text)) if text[i : i + 1] == b"{"]
        if keys:
            spot = rng.choice(keys) + 1
            depth = rng.choice([10, 300, 1500, 30000])
            added = rng.choice(
                [
                    b'"version": 1, "version": 1, "a": 1, "a": 2, ',
                    b'"deep": ' + b"[" * depth + b"]" * depth + b", ",
                    b'"deep": ' + b'{"a":' * depth + b"0" + b"}" * depth + b", ",
                ]
            )
            return text[:spot] + added + text[spot:]
    if action == 4:
        return rng.choice([b"", b" ", b"\n", b"null", b"7", b'"x"', b"[]", b"{}", b"\x00" * 100])
    if action == 5:
        return text + rng.choice([text, b"x", b"\x00", b"{}"])
    return mutate_bytes(rng, text)


def mutate_json(rng: random.Random, text: bytes, known_keys: list[str]) -> bytes:
    """One to three changes of structure, or one of text."""
    if rng.random() < 0.2:
        return mutate_text(rng, text)
    value = json.loads(text)
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        value = mutate_value(rng, value, known_keys)
    return dump(value)


def mutate_bytes(rng: random.Random, data: bytes) -> bytes:
    """Flipped bits, a cut, a hole, a repeated or an exchanged piece."""
    changed = bytearray(data)
    if not changed:
        return b"\x00"
    action = rng.randrange(7)
    at = rng.randrange(len(changed))
    size = min(rng.choice([1, 8, 512, 4096]), len(changed) - at)
    if action <= 2:
        for _ in range(rng.choice([1, 1, 3, 20])):
            changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    elif action == 3:
        del changed[at:]
    elif action == 4:
        changed[at : at + size] = bytes(size)
    elif action == 5:
        changed[at : at + size] = rng.randbytes(size)
    else:
        other = rng.randrange(len(changed) - size + 1)
        changed[at : at + size], changed[other : other + size] = (
            changed[other : other + size],
            changed[at : at + size],
        )
    return bytes(changed)
