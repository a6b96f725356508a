#!/usr/bin/env python3
"""What does it cost to keep every state on nvme instead of in device memory?

Trains the quickstart's model with 4096 tokens a step, all on the device and all on nvme in turn, order
alternating, and prints the median step of each run, the ratio of every pair, and their median. Rows are
taken from the second to the last but one.

    bench/placement_ratio.py PENSTOCK WORK [PAIRS]

WORK: a folder on the drive to measure. Standard library only.
"""
import json
import os
import shutil
import statistics
import subprocess
import sys

from ratio import print_ratios

MODEL = {"model_type": "gpt2", "n_layer": 10, "n_embd": 384, "n_head": 6, "n_positions": 512,
         "vocab_size": 256, "activation_function": "gelu_new"}
STEPS = 8


def config(home, nvme_path, micro_batches=8, bf16=True, **ours):
    offload = {"device": home, **({"nvme_path": nvme_path} if home == "nvme" else {})}
    return {"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": micro_batches,
            "bf16": {"enabled": bf16},
            "optimizer": {"type": "AdamW", "params": {"lr": 3e-4, "weight_decay": 0.1}},
            "zero_optimization": {"stage": 3, "offload_param": offload, "offload_optimizer": offload},
            "aio": {"queue_depth": 32},
            "penstock": {"commit_every_seconds": 0, "tier_split": False, **ours}}


def step_seconds(program, work, home, steps=STEPS, trace=False, **settings):
    """step_s of every row of a new run."""
    folder = os.path.join(work, home)
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    paths = {name: os.path.join(folder, name) for name in ("model.json", "config.json", "data", "run")}
    with open(paths["model.json"], "w", encoding="utf-8") as file:
        json.dump(MODEL, file)
    with open(paths["config.json"], "w", encoding="utf-8") as file:
        json.dump(config(home, folder, **settings), file)
    with open(paths["data"], "wb") as file:
        file.write(bytes(i * i % 251 for i in range(200000)))
    memory = ["--device-memory", "64MiB" if home == "nvme" else "600MiB", "--host-memory", "128MiB"]
    if trace:
        memory += ["--trace", os.path.join(folder, "trace.json")]
    subprocess.run([program, "train", "--model", paths["model.json"], "--config", paths["config.json"],
                    "--data", paths["data"], "--out", paths["run"], "--steps", str(steps), *memory],
                   check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    with open(os.path.join(paths["run"], "metrics.jsonl"), encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    shutil.rmtree(folder)
    return [row["step_s"] for row in rows]


def main():
    if len(sys.argv) not in (3, 4):
        raise SystemExit(__doc__)
    program, work = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
    pairs = int(sys.argv[3]) if len(sys.argv) == 4 else 5
    os.makedirs(work, exist_ok=True)
    homes = {"nvme": "nvme", "device": "none"}
    print_ratios(pairs, ("nvme", "device"), "s",
                 lambda name: statistics.median(step_seconds(program, work, homes[name])[1:-1]))


if __name__ == "__main__":
    main()
