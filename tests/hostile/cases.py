"""Mutation number k: what is changed in a copy of the base set, and the command that reads it."""

import dataclasses
import glob
import json
import os
import random
import shutil
import socket
from typing import Callable, Collection, Sequence

import base_set
import mutators
from base_set import ALL_VARIANTS
from commands import (
    ALL,
    NOTHING,
    OF_ROWS,
    OF_RUN,
    OF_SNAPSHOT,
    STATE,
    Case,
    choose_command,
    choose_resume,
    with_option,
)
from state_cases import state_case

CONFIG_KEYS = [
    "zero_optimization",
    "offload_param",
    "offload_optimizer",
    "nvme_path",
    "device",
    "penstock",
    "optimizer",
    "params",
    "lr",
    "scheduler",
    "fp16",
    "amp",
    "aio",
    "queue_depth",
    "tile_elements",
    "train_batch_size",
    "gradient_accumulation_steps",
    "type",
    "optimizer_threads",
    "compute_threads",
]
MODEL_KEYS = [
    "n_inner",
    "hidden_size",
    "num_hidden_layers",
    "n_ctx",
    "dtype",
    "activation_function",
]
TENSOR_KEYS = ["dtype", "shape", "data_offsets", "__metadata__", "weight_map"]
RUN_KEYS = [
    "version",
    "place",
    "state",
    "uuid",
    "ranks",
    "paths",
    "leftovers",
    "rows_from",
    "made_files",
    "model",
    "data",
    "step",
    "loss",
]


def config_case(rng: random.Random, case: Case) -> None:
    """DeepSpeed's config."""
    own = case.own()
    case.write("config.json", mutators.mutate_json(rng, case.read("config.json"), CONFIG_KEYS))
    case.choose_train()
    if rng.random() < 0.2:
        choose_resume(case, own, "--resume")
        case.may_make += rf"|(.*/)?{STATE}"


def model_case(rng: random.Random, case: Case) -> None:
    """Hugging Face's config, of a model with weights or without."""
    model = rng.choice(["model", "model", "export", "sharded"])
    name = f"{model}/config.json"
    case.write(name, mutators.mutate_json(rng, case.read(name), MODEL_KEYS))
    case.choose_train()
    case.arguments = with_option(case.arguments, "--model", model)


def mutate_safetensors(rng: random.Random, data: bytes) -> bytes:
    """The length of the header, the header, or any bytes."""
    size = int.from_bytes(data[:8], "little")
    header, rest = data[8 : 8 + size], data[8 + size :]
    action = rng.random()
    if action < 0.1:
        return mutators.number_near(rng, size, 64).to_bytes(8, "little") + header + rest
    if action < 0.75:
        changed = mutators.mutate_json(rng, header.rstrip(), TENSOR_KEYS)
        return len(changed).to_bytes(8, "little") + changed + rest
    return mutators.mutate_bytes(rng, data)


def weights_case(rng: random.Random, case: Case) -> None:
    """Weights in one file, or in two with an index."""
    name = rng.choice(
        [
            "export/model.safetensors",
            "export/model.safetensors",
            "sharded/model-00001-of-00002.safetensors",
            "sharded/model.safetensors.index.json",
        ]
    )
    data = case.read(name)
    case.write(
        name,
        (
            mutators.mutate_json(rng, data, TENSOR_KEYS)
            if name.endswith("json")
            else mutate_safetensors(rng, data)
        ),
    )
    folder = os.path.dirname(name)
    if rng.random() < 0.5:
        case.arguments = [
            "compare",
            *rng.choice([(folder, "run"), ("run", folder), ("export", "sharded")]),
        ]
        return
    case.choose_train()
    case.arguments = with_option(case.arguments, "--model", folder)


def data_case(rng: random.Random, case: Case) -> None:
    """Tokens in files and folders."""
    name = rng.choice(
        ["data.txt", "tokens.bin", "tokens.u32", "texts/a.txt", "texts/deep/b.txt", "texts"]
    )
    if name == "texts" or rng.random() < 0.2:
        replace(rng, case, name)
    else:
        case.write(name, mutators.mutate_bytes(rng, case.read(name)))
    case.choose_train()
    data = "texts" if name.startswith("texts") else name
    case.arguments = with_option(case.arguments, "--data", data)
    if rng.random() < 0.3:
        case.arguments += ["--data-order", "sequential"]


def replace(rng: random.Random, case: Case, name: str) -> str:
    """Something that is no regular file, or another one, in the place of a file or folder."""
    path = case.path(name)
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    elif os.path.lexists(path):
        os.remove(path)
    outside = os.path.relpath(case.path("outside"), os.path.dirname(path))
    kind = rng.choice(
        [
            "nothing",
            "folder",
            "fifo",
            "socket",
            "victim",
            "rows",
            "dangling",
            "loop",
            "zero",
            "other",
            "empty",
            "sparse",
            "outside",
        ]
    )
    if name == "to" and kind in ("outside", "other"):
        kind = "dangling"  # --to may be a link to a folder
    links = {
        "victim": f"{outside}/victim.txt",
        "rows": f"{outside}/rows.jsonl",
        "dangling": f"{outside}/nothing",
        "loop": os.path.basename(name),
        "zero": "/dev/zero",
        "outside": outside,
        "other": os.path.relpath(case.path("other"), os.path.dirname(path)),
    }
    if kind in links:
        os.symlink(links[kind], path)
    elif kind == "folder":
        os.makedirs(os.path.join(path, "inner"))
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "socket":
        here = os.open(os.path.dirname(path), os.O_PATH)
        try:  # a socket's path may have 107 bytes
            with socket.socket(socket.AF_UNIX) as server:
                server.bind(f"/proc/self/fd/{here}/{os.path.basename(path)}"[:107])
        finally:
            os.close(here)
    elif kind != "nothing":
        with open(path, "wb") as file:
            file.truncate(200 << 20 if kind == "sparse" else 0)
    return f"{name} becomes {kind}"


def mutate_rows(rng: random.Random, text: bytes) -> bytes:
    """A line of metrics.jsonl, or its bytes."""
    lines = text.splitlines(keepends=True)
    action = rng.random()
    if action < 0.5:
        at = rng.randrange(len(lines))
        lines[at] = (
            json.dumps(mutators.mutate_value(rng, json.loads(lines[at]), RUN_KEYS)).encode() + b"\n"
        )
        return b"".join(lines)
    if action < 0.7:
        lines.insert(
            rng.randrange(len(lines) + 1),
            rng.choice([*lines, b"\n", b"{}\n", b"7\n", b"x", b"\x00" * 4096]),
        )
        return b"".join(lines)
    return mutators.mutate_bytes(rng, text)


def add_to_snapshots(rng: random.Random, case: Case) -> str:
    """A folder, link or file among the snapshots that no snapshot command made."""
    name = rng.choice(
        [
            "evil",
            ".evil.unfinished",
            "evil.unfinished",
            ".unfinished",
            "..unfinished",
            ".evil.request",
            ".evil.answer",
            ".evil.failed",
            "é",
            "new",
            ".new.unfinished",
            "a b",
            "-x",
            "x" * 200,
        ]
    )
    path = case.path(f"run/snapshots/{name}")
    kind = rng.choice(["other", "run", "link", "file", "users", "of other", "of run"])
    if kind in ("other", "run"):
        os.symlink(f"../../{kind}", path)
    elif kind == "link":
        os.symlink("../../outside", path)
    elif kind == "file":
        os.mkfifo(path) if rng.random() < 0.3 else case.write(f"run/snapshots/{name}", b"x")
    elif kind == "users":
        os.makedirs(path)
        case.write(f"run/snapshots/{name}/notes.txt", b"the user's\n")
    else:
        os.makedirs(path)
        case.write(f"run/snapshots/{name}/run.json", case.read(f"{kind.split()[1]}/run.json"))
    return f"snapshots/{name}: {kind}"


def run_case(rng: random.Random, case: Case) -> None:
    """Files of RUN, and what lies in their places."""
    own = case.own()
    files = [
        name
        for name in (
            "run/run.json",
            "run/metrics.jsonl",
            "run/summary.json",
            "run/snapshots/kept/run.json",
            "run/snapshots/kept/metrics.jsonl",
        )
        if os.path.exists(case.path(name))
    ]
    name = rng.choice([*files, "run/run.json", "run/run.json", "run/metrics.jsonl"])
    action = rng.random()
    if action < 0.6:
        data = case.read(name)
        case.write(
            name,
            (
                mutate_rows(rng, data)
                if name.endswith("jsonl")
                else mutators.mutate_json(rng, data, RUN_KEYS)
            ),
        )
        case.what = name
    elif action < 0.85:
        states = [
            os.path.relpath(path, case.folder)
            for path in sorted(glob.glob(case.path(f"nvme*/*{own}*")))
        ]
        case.what = replace(
            rng,
            case,
            rng.choice(
                [
                    *files,
                    *states,
                    "run/snapshots",
                    "run/snapshots/kept",
                    "nvme",
                    "run/metrics.jsonl",
                    "to",
                    "run/metrics.jsonl.tmp-1",
                ]
            ),
        )
    else:
        case.what = add_to_snapshots(rng, case)
    of = "run/snapshots/kept" if "kept" in case.what else "run"
    names = (
        OF_SNAPSHOT
        if "kept" in case.what
        else OF_ROWS if case.what == "run/metrics.jsonl" else OF_RUN
    )
    choose_command(rng, case, own, names if rng.random() < 0.9 else ALL, of)
    if case.arguments[:1] == ["clean"] and case.may_change != NOTHING:
        # What the mutation put among the run's files need not stay.
        case.may_change += r"|run/snapshots/(?!mine)[^/]+(/inner)?|run/[^/]+(/inner)?"


Kind = Callable[[random.Random, Case], None]
KINDS: dict[str, tuple[Kind, int]] = {
    "config": (config_case, 20),
    "model": (model_case, 12),
    "weights": (weights_case, 15),
    "data": (data_case, 5),
    "run": (run_case, 20),
    "state": (state_case, 28),
}


@dataclasses.dataclass
class Choice:
    """What a mutation may be."""

    seed: int = 1
    kinds: Collection[str] = tuple(KINDS)
    variants: Sequence[str] = ALL_VARIANTS


def build(choice: Choice, number: int, base: str, folder: str) -> Case:
    """Mutation `number`, in a folder that is not there yet."""
    rng = random.Random(f"{choice.seed}:{number}")
    kinds = {name: weight for name, (_, weight) in KINDS.items() if name in choice.kinds}
    [kind] = rng.choices(list(kinds), list(kinds.values()))
    with_runs = kind not in ("model", "data")
    base_set.copy(os.path.join(base, rng.choice(choice.variants)), folder, with_runs)
    case = Case(folder=os.path.abspath(folder))
    KINDS[kind][0](rng, case)
    case.what = f"{kind} {case.what}".strip()
    return case
