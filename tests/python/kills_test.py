"""A training that is killed at any moment resumes with the rows and weights of one that was not.

PENSTOCK_LONG_TESTS=1 kills each kind 100 times instead of 4.
"""

from __future__ import annotations

import functools
import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from typing import Any

import optimizer_support  # noqa: F401  (finds the package)
import penstock
import torch
from optimizer_commits_test import Job
from optimizer_support import TILE, OptimizerTest, decay_groups
from penstock import reference

LONG = os.environ.get("PENSTOCK_LONG_TESTS") == "1"
KILLS = 100 if LONG else 4  # of each way
STEPS = 24 * KILLS
WAYS: tuple[str, ...] = (
    "level 1",
    "level 1 with model=",
    "level 1 with a long state",
    "level 2 with losses",
)
if LONG:
    WAYS += ("level 1 with losses", "level 2", "level 2 with a long state")


class Long:
    """A state that is too long for the record of a commit, and another one after each step."""

    def __init__(self, optimizer: Any) -> None:
        self.optimizer = optimizer

    def state_dict(self) -> dict[str, Any]:
        step = self.optimizer.steps
        return {"step": step, "text": f"{step} " * 30000}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        assert state == self.state_dict(), state["step"]


def make_optimizer(folder: str, way: str, model: torch.nn.Module) -> Any:
    run = os.path.join(folder, "run")
    ours = {"tile_elements": TILE, "tier_split": False}
    if not way.startswith("level 2"):
        return penstock.AdamW(
            decay_groups(model),
            lr=1e-2,
            run=run,
            nvme_path=folder,
            host_memory="64MiB",
            model=model if way == "level 1 with model=" else None,
            commit_every_steps=3,
            config={"penstock": ours},
        )
    nvme = {"device": "nvme", "nvme_path": folder}
    config = {
        "bf16": {"enabled": True},
        "gradient_clipping": 0,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "weight_decay": 1e-2}},
        "zero_optimization": {"stage": 3, "offload_param": nvme, "offload_optimizer": nvme},
        "penstock": {**ours, "host_memory": "64MiB", "commit_every_steps": 3},
    }
    return penstock.initialize(model, config, model_parameters=decay_groups(model), run=run)[1]


def train(folder: str, way: str) -> None:
    """The program that is killed: resumes from the run's commit, and appends a row each step."""
    losses = way.endswith("with losses")
    job = Job(functools.partial(make_optimizer, folder, way), torch.bfloat16, losses)
    job.attach()
    if way.endswith("with a long state"):
        job.optimizer.attach(long=Long(job.optimizer))
    start = job.optimizer.steps
    with open(os.path.join(folder, "rows"), "a", encoding="utf-8") as rows:
        for step in range(start, STEPS):
            loss = job.step()
            print(json.dumps([step, loss]), file=rows, flush=True)
    job.optimizer.commit()
    if not way.startswith("level 2"):
        job.optimizer.synchronize()
    torch.save(job.model.state_dict(), os.path.join(folder, "weights.pt"))


class KillsChangeNothing(OptimizerTest):
    def test_killed_trainings_have_the_rows_and_weights_of_one_that_was_not(self) -> None:
        whole = Job(lambda model: reference.AdamW(decay_groups(model), lr=1e-2), torch.bfloat16)
        expected = whole.steps(STEPS)
        for way in WAYS:
            with self.subTest(way), tempfile.TemporaryDirectory(dir=self.folder) as folder:
                self.check(way, folder, expected, whole.model)

    def check(self, way: str, folder: str, expected: list[float], whole: torch.nn.Module) -> None:
        """Kills trainings in a folder until one has made all steps; compares it with another."""
        killed = 0
        while not os.path.exists(os.path.join(folder, "weights.pt")):
            killed += self.start_and_kill(way, folder, kill=killed < KILLS)
        rows = self.rows(folder)
        for step, loss in rows:
            self.assertEqual(loss, expected[step], f"step {step}")
        self.assertEqual({step for step, _ in rows}, set(range(STEPS)))
        saved = torch.load(os.path.join(folder, "weights.pt"))
        for name, value in whole.state_dict().items():
            self.assertTrue(torch.equal(saved[name], value), name)
        self.assertGreater(killed, KILLS // 2)
        states = [
            name for _, _, names in os.walk(folder) for name in names if name.endswith(".state")
        ]
        self.assertEqual(len(states), 1, "killed processes left state files")

    def rows(self, folder: str) -> list[list]:
        """Returns the whole rows; the last one of a killed process may be a part of one."""
        path = os.path.join(folder, "rows")
        if not os.path.exists(path):
            return []
        rows = []
        with open(path, encoding="utf-8") as file:
            for line in file.read().split("\n"):
                try:
                    rows.append(json.loads(line))
                except ValueError:
                    continue
        return rows

    def start_and_kill(self, way: str, folder: str, kill: bool) -> bool:
        """Trains in a process, and kills that some time after it has begun; returns whether.

        Those that are killed are forks, which saves the time of importing torch.
        """
        if not kill:
            command = [sys.executable, __file__, "train", folder, way]
            subprocess.run(command, check=True, timeout=300)
            return False
        child = multiprocessing.get_context("fork").Process(target=train, args=(folder, way))
        draw = random.Random(time.time_ns())
        wanted = len(self.rows(folder)) + draw.randrange(10)
        child.start()
        while child.is_alive() and len(self.rows(folder)) < wanted:
            time.sleep(0.002)
        time.sleep(draw.random() * 0.03)
        child.kill()
        child.join()
        self.assertIn(child.exitcode, (0, -signal.SIGKILL))
        return child.exitcode != 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["train"]:
        train(sys.argv[2], sys.argv[3])
    else:
        unittest.main()
