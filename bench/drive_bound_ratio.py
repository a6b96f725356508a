#!/usr/bin/env python3
"""How near to its drives' speed is a step that they bound, and what do four drives give over one?

Trains the quickstart's model and one of 125 million parameters, all states on nvme with the default
settings but for commits and tiles, on one and on four simulated drives so slow that they take nearly all
of a step: updates wait for the norm, so what backward computes is time in which nothing is written. Prints for each run the median step, the time in which its drives pass the bytes that the rows
say it moved, and their ratio; and how much more four drives move in a second than one. (A step moves more
bytes with them: their blocks leave host memory room for fewer tiles.) Rows are taken from the third to
the last but one. The quickstart's model has tiles of 262144 elements, because 18 larger ones cannot be
shared by four drives alike.

    bench/drive_bound_ratio.py PENSTOCK WORK [STEPS]

WORK: a folder for the runs. The simulated drives are memory: states of 2 GB. Standard library only.
"""
import json
import os
import shutil
import statistics
import subprocess
import sys

GPT2 = {"model_type": "gpt2", "n_positions": 512, "activation_function": "gelu_new"}
# model, GB/s of a drive in each direction, host memory, elements of a tile
MODELS = {
    "quickstart": ({**GPT2, "n_layer": 10, "n_embd": 384, "n_head": 6, "vocab_size": 256},
                   0.05, "160MiB", 1 << 18),
    "125M": ({**GPT2, "n_layer": 12, "n_embd": 768, "n_head": 12, "vocab_size": 50257},
             0.1, "700MiB", 1 << 20),
}
DRIVES = (1, 4)


def write_json(path, value):
    with open(path, "w", encoding="utf-8") as file:
        json.dump(value, file)
    return path


def rows_of_run(program, folder, model, drives, gbps, host_memory, tile, steps):
    shutil.rmtree(folder, ignore_errors=True)
    paths = [os.path.join(folder, str(drive)) for drive in range(drives)]
    for path in paths:
        os.makedirs(path)
    offload = {"device": "nvme", "nvme_path": paths}
    config = {"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": True},
              "optimizer": {"type": "AdamW", "params": {"lr": 3e-4, "weight_decay": 0.1}},
              "zero_optimization": {"stage": 3, "offload_param": offload, "offload_optimizer": offload},
              "penstock": {"commit_every_seconds": 0, "tile_elements": tile,
                           "aio": {"simulate": {"read_gbps": gbps, "write_gbps": gbps}}}}
    data = os.path.join(folder, "data")
    with open(data, "wb") as file:
        file.write(bytes(i * i % 251 for i in range(200000)))
    run = os.path.join(folder, "run")
    subprocess.run([program, "train", "--model", write_json(os.path.join(folder, "model.json"), model),
                    "--config", write_json(os.path.join(folder, "config.json"), config), "--data", data,
                    "--out", run, "--steps", str(steps), "--sequence-length", "64", "--device", "cpu",
                    "--device-memory", "1GiB", "--host-memory", host_memory],
                   check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    with open(os.path.join(run, "metrics.jsonl"), encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    shutil.rmtree(folder)
    return rows[2:-1]


def main():
    program, work = sys.argv[1], sys.argv[2]
    steps = int(sys.argv[3]) if len(sys.argv) > 3 else 8
    for name, (model, gbps, host_memory, tile) in MODELS.items():
        of_drives = {}
        for drives in DRIVES:
            rows = rows_of_run(program, os.path.join(work, "drive_bound"), model, drives, gbps, host_memory,
                               tile, steps)
            step = statistics.median(row["step_s"] for row in rows)
            moved = statistics.median(max(row["nvme_read_bytes"], row["nvme_write_bytes"]) for row in rows)
            bound = moved / (gbps * drives * 1e9)
            of_drives[drives] = moved / step
            print(f"{name}, {drives} x {gbps} GB/s: step {step:.3f} s, bound {bound:.3f} s, "
                  f"ratio {step / bound:.3f}", flush=True)
        print(f"{name}: four drives move {of_drives[4] / of_drives[1]:.2f} times as much a second as one")


if __name__ == "__main__":
    main()
