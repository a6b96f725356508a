"""What is mutated: small runs, models and data that the program itself made, one folder each.

States of format version 2, which no training of today writes, are made of those of version 1.
"""

import json
import os
import random
import shutil
import struct
import subprocess
from typing import Any

import transcode

MODEL = {
    "model_type": "gpt2",
    "n_layer": 1,
    "n_embd": 32,
    "n_head": 2,
    "n_positions": 32,
    "n_inner": 64,
    "vocab_size": 256,
    "activation_function": "gelu_new",
    "layer_norm_epsilon": 1e-5,
    "initializer_range": 0.02,
    "attn_pdrop": 0.0,
    "embd_pdrop": 0.0,
    "resid_pdrop": 0.0,
    "tie_word_embeddings": True,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
TRAIN = [
    "train",
    "--model",
    "model",
    "--config",
    "config.json",
    "--data",
    "data.txt",
    "--out",
    "run",
    "--device",
    "cpu",
    "--host-memory",
    "64MiB",
    "--device-memory",
    "64MiB",
    "--sequence-length",
    "16",
]
VARIANTS = ("nvme", "host", "paths")
# Variants whose states are turned into version 2.
VERSION_2 = {
    "nvme-renamed": ("nvme", transcode.renamed),
    "nvme-mixed": ("nvme", transcode.mixed),
    "host-mixed": ("host", transcode.mixed),
    "paths-mixed": ("paths", transcode.mixed),
}
ALL_VARIANTS = (*VARIANTS, *VERSION_2)


def config_of(variant: str) -> dict[str, Any]:
    """A config of many keys, in DeepSpeed's format; paths are relative to the case's folder."""
    home: dict[str, Any] = (
        {"device": "cpu"} if variant == "host" else {"device": "nvme", "nvme_path": "nvme"}
    )
    if variant == "paths":
        home["nvme_path"] = ["nvme", "nvme2"]
    params: dict[str, Any] = {"lr": 1e-3, "weight_decay": 0.01, "betas": [0.9, 0.99]}
    if variant != "paths":
        params["eps"] = 1e-8
    return {
        "train_batch_size": 4,
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": 2,
        "gradient_clipping": 1.0,
        "steps_per_print": 1,
        "bf16": {"enabled": variant != "host", "bf16_optimizer_states": variant == "paths"},
        "optimizer": {"type": "Lion" if variant == "paths" else "AdamW", "params": params},
        "scheduler": {
            "type": "WarmupLR",
            "params": {
                "warmup_min_lr": 0,
                "warmup_max_lr": 1e-3,
                "warmup_num_steps": 4,
                "warmup_type": "linear",
            },
        },
        "zero_optimization": {
            "stage": 3,
            "sub_group_size": 8192,
            "offload_param": dict(home),
            "offload_optimizer": dict(home),
        },
        "activation_checkpointing": {"partition_activations": False},
        "aio": {"queue_depth": 8, "block_size": 1048576},
        "penstock": {
            "commit_every_steps": 1,
            "commit_every_seconds": 0,
            "compute_threads": 1,
            "tier_split": False,
            "tile_elements": 4096,
            "durable": variant != "paths",
        },
    }


def program_environment() -> dict[str, str]:
    """Without what would slow down or hide: the program need not start again for OpenMP's sake."""
    environment = {
        key: value
        for key, value in os.environ.items()
        if key not in ("WORLD_SIZE", "RANK", "LOCAL_RANK", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE")
    }
    return {
        **environment,
        "OMP_WAIT_POLICY": "passive",
        "OMP_NUM_THREADS": "1",
        "ASAN_OPTIONS": "detect_leaks=0:hard_rss_limit_mb=3000",
        "UBSAN_OPTIONS": "print_stacktrace=1",
    }


def run(program: str, folder: str, *arguments: str) -> None:
    """A command that must succeed."""
    done = subprocess.run(
        [program, *arguments],
        cwd=folder,
        env=program_environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    if done.returncode != 0:
        raise SystemExit(
            f"making the base set: penstock {' '.join(arguments)} in {folder}\n{done.stderr}"
        )


def write_json(path: str, value: Any) -> None:
    """Indented."""
    with open(path, "w", encoding="utf-8") as file:
        json.dump(value, file, indent=1)


def write_inputs(folder: str, variant: str) -> None:
    """The model's config, the data in all their forms, and what must never change."""
    rng = random.Random(7)
    for name in ("model", "nvme", "nvme2", "texts/deep", "outside/empty"):
        os.makedirs(os.path.join(folder, name))
    write_json(os.path.join(folder, "model/config.json"), MODEL)
    write_json(os.path.join(folder, "config.json"), config_of(variant))
    tokens = [rng.randrange(256) for _ in range(3000)]
    files = {
        "data.txt": bytes(tokens),
        "tokens.bin": struct.pack("<3000H", *tokens),
        "tokens.u32": struct.pack("<3000I", *tokens),
        "texts/a.txt": bytes(tokens[:900]),
        "texts/deep/b.txt": bytes(tokens[900:]),
        "texts/empty.txt": b"",
        "outside/victim.txt": b"not yours\n" * 100,
        "outside/rows.jsonl": b'{"step":1}\n{"step":2}\n',
    }
    for name, data in files.items():
        with open(os.path.join(folder, name), "wb") as file:
            file.write(data)
    os.symlink("victim.txt", os.path.join(folder, "outside/link"))


def split_weights(export: str, sharded: str) -> None:
    """An exported model in two files and an index."""
    os.makedirs(sharded)
    shutil.copy(os.path.join(export, "config.json"), sharded)
    with open(os.path.join(export, "model.safetensors"), "rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        data = file.read()
    header.pop("__metadata__", None)
    index: dict[str, Any] = {"metadata": {"total_size": len(data)}, "weight_map": {}}
    for shard in range(2):
        name, offset, entries, kept = f"model-0000{shard + 1}-of-00002.safetensors", 0, {}, b""
        for tensor in list(header)[shard::2]:
            begin, end = header[tensor]["data_offsets"]
            entries[tensor] = {**header[tensor], "data_offsets": [offset, offset + end - begin]}
            offset += end - begin
            kept += data[begin:end]
            index["weight_map"][tensor] = name
        text = json.dumps({"__metadata__": {"format": "pt"}, **entries}).encode()
        with open(os.path.join(sharded, name), "wb") as file:
            file.write(len(text).to_bytes(8, "little") + text + kept)
    write_json(os.path.join(sharded, "model.safetensors.index.json"), index)


def make(program: str, folder: str) -> None:
    """All variants, each in a folder of its name."""
    for variant in VARIANTS:
        case = os.path.join(folder, variant)
        os.makedirs(case)
        write_inputs(case, variant)
        run(program, case, *TRAIN, "--steps", "2")
        if variant != "paths":  # --resume-from needs a durable one
            run(program, case, "snapshot", "run", "kept")
        run(program, case, *TRAIN, "--steps", "3", "--resume")
        run(program, case, "export", "run", "--to", "export")
        split_weights(os.path.join(case, "export"), os.path.join(case, "sharded"))
        for name in ("run/notes.txt", "run/snapshots/mine/notes.txt"):
            os.makedirs(os.path.dirname(os.path.join(case, name)), exist_ok=True)
            with open(os.path.join(case, name), "w", encoding="utf-8") as file:
                file.write("the user's\n")
        # A foreign state beside the run's own.
        foreign = ["other" if word == "run" else word for word in TRAIN]
        run(program, case, *foreign, "--steps", "1")
    for name, (variant, change) in VERSION_2.items():
        copy(os.path.join(folder, variant), os.path.join(folder, name), True)
        for of in ("run", "run/snapshots/kept"):
            if os.path.exists(os.path.join(folder, name, of, "run.json")):
                transcode.transcode(state_paths(os.path.join(folder, name, of)), change)


def state_paths(run_folder: str) -> list[str]:
    """The files of a run's state, in the order of their paths."""
    with open(os.path.join(run_folder, "run.json"), encoding="utf-8") as file:
        paths = json.load(file)["state"]["ranks"][0]["paths"]
    return [os.path.join(run_folder, path) for path in paths]


def copy(template: str, target: str, with_runs: bool) -> None:
    """A case of its own: files that name their folder name the new one."""
    left_out = () if with_runs else ("run", "other", "*.state")
    shutil.copytree(template, target, symlinks=True, ignore=shutil.ignore_patterns(*left_out))
    for parent, _, names in os.walk(target):
        for name in names:
            if name != "run.json" and not name.endswith(".run"):
                continue
            path = os.path.join(parent, name)
            with open(path, encoding="utf-8") as file:
                text = file.read()
            with open(path, "w", encoding="utf-8") as file:
                file.write(text.replace(os.path.abspath(template), os.path.abspath(target)))
