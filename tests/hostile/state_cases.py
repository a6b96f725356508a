"""Mutations of state files: of their bytes, of single fields, and of all that a head says."""

import glob
import os
import random
import re

import mutators
import state_bytes
import version2
from commands import OF_RUN, OF_SNAPSHOT, Case, choose_command

MOST_ELEMENTS = 1 << 22
ENCODINGS = ("fp32", "bf16", "fp16", "int16", "blockwise8")
ROLES = ("weight", "lo", "master", "exp_avg", "exp_avg_sq")


def change_groups(rng: random.Random, layout: version2.Json) -> str:
    """How a group is stored, or how many there are."""
    groups = layout["groups"]
    chosen = rng.choice(groups)
    action = rng.randrange(6)
    if action == 0:
        chosen["frozen"] = not chosen["frozen"]
        return f"frozen: {chosen['frozen']}"
    if action == 1:
        count = rng.choice([1, 1, 2, 3, 4, 6, 7])
        chosen["planes"] = [
            version2.plane(rng.choice(ROLES) if i else "weight", rng.choice(ENCODINGS))
            for i in range(count)
        ]
        return "other planes"
    if action == 2:
        del chosen["planes"][rng.randint(1, len(chosen["planes"])) :]
        return "fewer planes"
    if action == 3:
        chosen["parameter_group"] = rng.choice([0, 1, 7, 65535, 65536])
        return "parameter group"
    if action == 4:
        rng.shuffle(groups)
        return "groups in another order"
    groups.extend(dict(chosen) for _ in range(rng.choice([1, 2, 300])))
    return "more groups"


def change_tensors(rng: random.Random, layout: version2.Json) -> str:
    """Their groups, shapes, number and names."""
    module = rng.choice(layout["modules"])
    tensor = rng.choice(module["tensors"])
    action = rng.randrange(6)
    if action == 0:
        tensor["group"] = rng.randrange(len(layout["groups"]))
        return "the group of a tensor"
    if action == 1:
        tensor["shape"] = [rng.choice([1, 2, 63, 4096, 4097]) for _ in range(rng.randrange(4))]
        return "the shape of a tensor"
    if action == 2:
        module["tensors"].remove(tensor)
        return "a tensor less"
    if action == 3:
        layout["modules"].remove(module)
        return "a module less"
    if action == 4:
        tensor["name"] = rng.choice([*mutators.STRINGS[:-1], "wte.weight"])
        return "the name of a tensor"
    module["tensors"].append({**tensor, "name": "x"})
    return "a tensor more"


def change_shape(rng: random.Random, shape: version2.Shape) -> str:
    """What the header says beside the layout."""
    action = rng.randrange(3)
    if action == 0:
        shape.world_size = rng.choice([2, 3, 64, 65536, 65537])
        shape.rank = rng.choice([0, 1, shape.world_size - 1, shape.world_size])
        return f"rank {shape.rank} of {shape.world_size}"
    if action == 1:
        shape.tile_elements = rng.choice([4096, 8192, 12288, 1 << 20, 1 << 47])
        return f"tiles of {shape.tile_elements}"
    shape.slots = 3 - shape.slots
    return f"{shape.slots} slots"


def replan(rng: random.Random, paths: list[str]) -> str:
    """Writes a state of version 2 anew as the writer of another one would have, with checksums that
    hold and values of zero; what is other about it."""
    old = state_bytes.read(paths[0])
    layout, shape = version2.layout_of(old), version2.shape_of(old)
    what = []
    for _ in range(rng.choice([1, 1, 2, 3])):
        action = rng.randrange(3)
        if action == 0:
            what.append(change_groups(rng, layout))
        elif action == 1:
            what.append(change_tensors(rng, layout))
        else:
            what.append(change_shape(rng, shape))
        if not layout["modules"] or not all(module["tensors"] for module in layout["modules"]):
            break
    version2.place_tensors(layout)
    if sum(module["elements"] for module in layout["modules"]) > MOST_ELEMENTS:
        return "replanned: too large, and left as it was"
    plan = version2.Plan(layout, shape)
    new = plan.files()
    plan.write_commits(new, old)
    for path, state in zip(paths, new):
        with open(path, "wb") as file:
            file.write(state.bytes)
    return "replanned: " + ", ".join(what)


def state_case(rng: random.Random, case: Case) -> None:
    """Files of states."""
    own = case.own()
    states = sorted(
        path
        for path in glob.glob(case.path("**/penstock-*.state"), recursive=True)
        if own in os.path.basename(path)
    )
    path = rng.choice(states)
    name = os.path.relpath(path, case.folder)
    with open(path, "rb") as file:
        data = file.read()
    action = rng.random()
    raw = False
    if action < 0.3:
        changed, case.what, raw = mutators.mutate_bytes(rng, data), "raw", True
    elif action < 0.35:
        other = rng.choice(sorted(glob.glob(case.path("nvme*/*.state")) + states))
        with open(other, "rb") as file:
            changed, case.what = file.read(), f"{os.path.relpath(other, case.folder)} in its place"
    elif action < 0.5 and state_bytes.State(data).version == 2:
        of_state = [other for other in states if ("snapshot" in other) == ("snapshot" in path)]
        case.what = replan(rng, of_state)
        changed = case.read(name)
    else:
        changed, case.what = state_bytes.forge(rng, data)
    case.write(name, changed)
    case.what = f"{name}: {case.what}"
    snapshot = "snapshot" in name
    choose_command(
        rng,
        case,
        own,
        OF_SNAPSHOT if snapshot else OF_RUN,
        "run/snapshots/kept" if snapshot else "run",
    )
    if raw and case.arguments[:2] in (["inspect", "run"], ["export", "run"]) and not snapshot:
        expect(data, changed, states, name, case)


def expect(data: bytes, changed: bytes, states: list[str], name: str, case: Case) -> None:
    """Sets what the command must make of a raw change in what it verifies."""
    first = next(
        path for path in states if "snapshot" not in path and not re.search(r"\.\d+\.state$", path)
    )
    state = state_bytes.State(data)
    commits = state if case.path(name) == first else state_bytes.State(open(first, "rb").read())
    parts = state.committed_parts(commits)

    def differs(begin: int, end: int) -> bool:
        return data[begin:end] != changed[begin:end]

    size = state.get("Q", 192)  # behind it lies the second head
    damaged = any(differs(*part) for part in parts)
    if len(changed) < size:
        case.must_fail = True
    elif case.arguments[0] == "inspect":
        heads = any(differs(*part) for part in state.before_slots())
        second = len(changed) > size and differs(size, len(data))
        case.must_fail = heads or second or damaged
    elif any(differs(*part) for part in state.covered_head()):
        case.must_tell = "head"
    elif damaged and not differs(place := state.newest(), place + state.get("Q", 136)):
        case.must_tell = "is damaged"  # the commit before it is exported, if that is whole
