"""Trainings of GPT-2 by the program itself: its files, its run, its rows."""

from __future__ import annotations

import dataclasses
import json
import pathlib
import random
import subprocess
from typing import Any

from said import KIT, drive

_HOST_BYTES = (
    15  # of a parameter: its states, its gradient, and a tenth for what is not per parameter
)
_HOST_REST = 64 << 20


@dataclasses.dataclass
class Job:
    """A training. `home`: none, cpu or nvme, of weights and states; `tile`: elements, 0: the
    default; `engine`: of I/O; `seconds`: it is ended after that."""

    layers: int = 1
    width: int = 64
    heads: int = 2
    rows: int = 2
    length: int = 16
    vocabulary: int = 50257
    accumulate: int = 1
    home: str = "cpu"
    steps: int = 5
    tile: int = 0
    attention: str = ""
    engine: str = ""
    device_memory: str = ""
    seconds: float = 1e6

    @staticmethod
    def of(words: list[str]) -> Job:
        """Reads KEY=VALUE words.

        Raises:
            SystemExit: a key is none of a job's.
        """
        job = Job()
        for word in words:
            key, _, value = word.partition("=")
            if not hasattr(job, key):
                raise SystemExit(f"error: {word}: there is no key {key}")
            setattr(job, key, type(getattr(job, key))(value))
        return job

    def parameters(self) -> int:
        width = self.width
        layer = 12 * width * width + 13 * width
        return self.layers * layer + (self.vocabulary + self.length + 2) * width


def write_files(job: Job, folder: pathlib.Path) -> list[str]:
    """Writes model, configuration and tokens; returns the program's arguments but for --out."""
    model = {
        "model_type": "gpt2",
        "n_layer": job.layers,
        "n_embd": job.width,
        "n_head": job.heads,
        "n_positions": job.length,
        "vocab_size": job.vocabulary,
        "activation_function": "gelu_new",
        **dict.fromkeys(("attn_pdrop", "embd_pdrop", "resid_pdrop"), 0.0),
    }
    home: dict[str, Any] = {"device": job.home}
    if job.home == "nvme":
        home["nvme_path"] = str(drive())
    ours: dict[str, Any] = {"commit_every_seconds": 0, "durable": False, "tier_split": False}
    if job.tile:
        ours["tile_elements"] = job.tile
    if job.attention:
        ours["attention"] = job.attention
    if job.engine:
        ours["aio"] = {"engine": job.engine}
    config = {
        "train_micro_batch_size_per_gpu": job.rows,
        "gradient_accumulation_steps": job.accumulate,
        "bf16": {"enabled": True},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "weight_decay": 0.01}},
        "zero_optimization": {"stage": 3, "offload_param": home, "offload_optimizer": home},
        "wall_clock_breakdown": True,
        "penstock": ours,
    }
    (folder / "model.json").write_text(json.dumps(model))
    (folder / "config.json").write_text(json.dumps(config))
    # Random tokens below 256, two bytes each, the same for every job of a size: what is learned does
    # not matter here, but zeros would be faster than what people train on.
    count = 2 * (job.rows * job.accumulate * job.length * job.steps + job.length)
    tokens = bytearray(2 * count)
    tokens[::2] = random.Random(1).randbytes(count)
    (folder / "tokens.bin").write_bytes(tokens)
    words = ["train", "--device", "cuda"]
    for option, file in (
        ("model", "model.json"),
        ("config", "config.json"),
        ("data", "tokens.bin"),
    ):
        words += [f"--{option}", str(folder / file)]
    if job.device_memory:
        words += ["--device-memory", job.device_memory]
    if job.home != "none":  # what a GPU has to register; by default it is most of the memory
        words += ["--host-memory", str(_HOST_BYTES * job.parameters() + _HOST_REST)]
    return [str(KIT / "penstock"), *words, "--steps", str(job.steps)]


@dataclasses.dataclass
class Trained:
    """What a training has left: its rows, and its first error ("": none)."""

    rows: list[dict[str, Any]]
    error: str


def rows_of(run: pathlib.Path) -> list[dict[str, Any]]:
    try:
        lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    except OSError:
        return []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def train(job: Job, folder: pathlib.Path) -> Trained:
    """Trains in a folder; prints what the program printed."""
    folder.mkdir(parents=True, exist_ok=True)
    run = folder / "run"
    command = [*write_files(job, folder), "--out", str(run)]
    program = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    late = False
    try:
        printed, _ = program.communicate(timeout=job.seconds)
    except subprocess.TimeoutExpired:
        program.kill()  # a signal that it knows would have it commit first
        printed, _ = program.communicate()
        late = True
    print(printed, flush=True)
    if program.returncode == 0:
        return Trained(rows_of(run), "")
    errors = [line for line in printed.splitlines() if "error: " in line]
    how = f"more than {job.seconds:.0f} s" if late else f"exit code {program.returncode}"
    return Trained(rows_of(run), errors[0] if errors else how)
