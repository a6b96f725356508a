#!/usr/bin/env python3
"""Makes the archives beside it, with the program and the package of an older commit.

  git worktree add OLD 3077072      and in OLD, the targets penstock and libpenstock.so are built
  PYTHONPATH=OLD/python PENSTOCK_LIBRARY=OLD/build/release/front/libpenstock.so \\
    python3 tests/older_runs/make_runs.py OLD/build/release/train/penstock [NAME...]

Needs torch. The runs of `penstock train` compute on AVX2 alone, as the tests that resume them do, so
that machines agree on the order of sums.
"""

from __future__ import annotations

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
from typing import Any

import older_runs
import package_training
from package_training import Training

MODEL = {
    "model_type": "gpt2", "n_layer": 2, "n_embd": 8, "n_head": 2, "n_inner": 16, "n_positions": 8,
    "vocab_size": 32, "activation_function": "gelu_new", "attn_pdrop": 0.0, "embd_pdrop": 0.0,
    "resid_pdrop": 0.0,
}  # fmt: skip


def config_of(name: str, root: str) -> dict[str, Any]:
    nvme = [os.path.join(root, folder) for folder in ("nvme", "nvme2", "nvme3")]
    home: dict[str, Any] = {"device": "nvme", "nvme_path": nvme[0]}
    if name == "train-memory":
        home = {"device": "cpu"}
    if name == "train-paths":
        home["nvme_path"] = nvme
    for folder in nvme:
        os.makedirs(folder)
    return {
        "train_batch_size": 4,
        "train_micro_batch_size_per_gpu": 1,
        "gradient_clipping": 1.0,
        "bf16": {"enabled": name in ("train-nvme", "train-ranks")},
        "fp16": {"enabled": name == "train-paths", "initial_scale_power": 8},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "weight_decay": 0.01}},
        "zero_optimization": {"stage": 3, "offload_param": home, "offload_optimizer": home},
        "penstock": {
            "commit_every_seconds": 0,
            "compute_threads": 1,
            "tier_split": False,
            "tile_elements": 4096,
            "snapshot_every_steps": 1 if name == "train-paths" else 0,
            "keep_snapshots": 9,
        },
    }


def make_train(program: str, name: str, root: str) -> None:
    def penstock(*arguments: str, ranks: int = 1) -> None:
        launch = ["launch", "--ranks", str(ranks), "--"] if ranks > 1 else []
        subprocess.run(
            [program, *launch, *arguments],
            check=True,
            cwd=root,
            stdout=subprocess.DEVNULL,
            env={**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX2"},
        )

    def train(steps: int, *more: str) -> None:
        penstock(*older_runs.training(root), "--steps", str(steps), *more,
                 ranks=2 if name == "train-ranks" else 1)  # fmt: skip

    def exported(of: str) -> dict[str, str]:
        penstock("export", of, "--to", "export")
        found = older_runs.digests(os.path.join(root, "export/model.safetensors"))
        shutil.rmtree(os.path.join(root, "export"))
        return found

    os.makedirs(os.path.join(root, "model"))
    for path, said in (("model/config.json", MODEL), ("config.json", config_of(name, root))):
        pathlib.Path(root, path).write_text(json.dumps(said, indent=1))
    pathlib.Path(root, "data.txt").write_bytes(bytes(i * i * i % 31 for i in range(2000)))
    train(2)
    penstock("snapshot", "run", "kept")
    train(4, "--resume", *older_runs.BEHIND_KEPT.get(name, []))
    if name == "train-memory":  # a change is the config's from then on
        older_runs.set_rate(root, 0.02)
    packed = f"{root}-packed"
    shutil.copytree(root, packed)
    kept = ["run", *sorted(os.listdir(os.path.join(root, "run/snapshots")))]
    recorded: dict[str, Any] = {"weights": {}, "steps": {}}
    for of in kept:
        folder = of if of == "run" else f"run/snapshots/{of}"
        said = subprocess.run(
            [program, "inspect", folder], check=True, cwd=root, capture_output=True, text=True
        ).stdout
        recorded["steps"][of] = int(re.search(r"committed step +(\d+)", said)[1])
        recorded["weights"][of] = exported(folder)
    train(6, "--resume")
    recorded["after"] = exported("run")
    recorded["rows"] = older_runs.numbers(os.path.join(root, "run/metrics.jsonl"))
    older_runs.pack(packed, name, recorded, root)
    shutil.rmtree(packed)


def make_package(name: str, root: str) -> None:
    kind, place = name.split("-")
    run, nvme = package_training.places(root, place)
    for folder in nvme:
        os.makedirs(folder)
    training = Training(kind, run, nvme)
    training.attach()
    kept = os.path.join(root, "kept")
    recorded: dict[str, Any] = {}
    losses = [training.step() for _ in range(2)]
    saved = {**training.optimizer.state_dict()}
    saved["penstock"] = {**saved["penstock"], "snapshot": training.optimizer.snapshot(kept)}
    recorded["kept"] = training.weights()
    losses += [training.step() for _ in range(2)]
    training.optimizer.commit()
    recorded["weights"] = training.weights()
    training.optimizer.close()
    pathlib.Path(root, "state_dict.json").write_text(json.dumps(saved))
    packed = f"{root}-packed"
    shutil.copytree(root, packed)
    for of, steps in ((run or saved["penstock"]["run"], 4), (kept, 2)):
        resumed = Training(kind, of, nvme)
        assert resumed.attach() == steps, of
        found = [resumed.step() for _ in range(6 - steps)]
        assert found[: 4 - steps] == losses[steps:], of
        recorded["losses"] = losses + found[4 - steps :]
        after = resumed.weights()
        assert recorded.setdefault("after", after) == after, of
        resumed.optimizer.close()
    older_runs.pack(packed, name, recorded, root)
    shutil.rmtree(packed)


def main() -> None:
    program = os.path.abspath(sys.argv[1])
    for name in sys.argv[2:] or (*older_runs.TRAIN, *older_runs.PACKAGE):
        with tempfile.TemporaryDirectory() as folder:
            root = os.path.join(os.path.realpath(folder), "root")
            os.makedirs(root)
            if name in older_runs.TRAIN:
                make_train(program, name, root)
            else:
                make_package(name, root)
        print(name, (older_runs.FOLDER / f"{name}.tar.xz").stat().st_size, flush=True)


if __name__ == "__main__":
    main()
