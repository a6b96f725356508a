"""A training that is killed at any moment goes on with the rows and weights of one that was not.

PENSTOCK_LONG_TESTS=1 kills 100 times instead of 10.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
import unittest

import optimizer_support  # noqa: F401  (finds the package)
import penstock
import torch
from optimizer_commits_test import Job
from optimizer_support import TILE, OptimizerTest, decay_groups
from penstock import reference

LONG = os.environ.get("PENSTOCK_LONG_TESTS") == "1"
KILLS = 100 if LONG else 10
STEPS = 8 * KILLS


def train(folder: str, late: bool) -> None:
    """The program that is killed: goes on from the run's commit, and appends a row each step."""
    job = Job(
        lambda model: penstock.AdamW(
            decay_groups(model),
            lr=1e-2,
            run=os.path.join(folder, "run"),
            nvme_path=folder,
            host_memory="64MiB",
            model=model if late else None,
            commit_every_steps=3,
            config={"penstock": {"tile_elements": TILE, "tier_split": False}},
        ),
        torch.bfloat16,
    )
    start = job.attach()
    with open(os.path.join(folder, "rows"), "a", encoding="utf-8") as rows:
        for step in range(start, STEPS):
            loss = job.step()
            print(json.dumps([step, loss]), file=rows, flush=True)
    job.optimizer.commit()
    job.optimizer.synchronize()
    torch.save(job.model.state_dict(), os.path.join(folder, "weights.pt"))


class KillsChangeNothing(OptimizerTest):
    def test_killed_trainings_have_the_rows_and_weights_of_one_that_was_not(self) -> None:
        late = bool(random.Random(time.time_ns()).randrange(2))
        whole = Job(
            lambda model: reference.AdamW(
                decay_groups(model), lr=1e-2, model=model if late else None
            ),
            torch.bfloat16,
        )
        expected = whole.steps(STEPS)
        killed = 0
        while not os.path.exists(os.path.join(self.folder, "weights.pt")):
            killed += self.start_and_kill(late, kill=killed < KILLS)
        rows = self.rows()
        for step, loss in rows:
            self.assertEqual(loss, expected[step], f"step {step}, late {late}")
        self.assertEqual({step for step, _ in rows}, set(range(STEPS)))
        saved = torch.load(os.path.join(self.folder, "weights.pt"))
        for name, value in whole.model.state_dict().items():
            self.assertTrue(torch.equal(saved[name], value), name)
        self.assertGreater(killed, KILLS // 2)
        states = [
            name
            for root, _, names in os.walk(self.folder)
            for name in names
            if name.endswith(".state")
        ]
        self.assertEqual(len(states), 1, "killed processes left state files")

    def rows(self) -> list[list]:
        """Returns the whole rows; the last one of a killed process may be a part of one."""
        path = os.path.join(self.folder, "rows")
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

    def start_and_kill(self, late: bool, kill: bool) -> bool:
        """Trains in a process, and kills that some time after it has begun; returns whether.

        Those that are killed are forks, which saves the time of importing torch.
        """
        if not kill:
            command = [sys.executable, __file__, "train", self.folder, str(int(late))]
            subprocess.run(command, check=True, timeout=300)
            return False
        child = multiprocessing.get_context("fork").Process(target=train, args=(self.folder, late))
        draw = random.Random(time.time_ns())
        wanted = len(self.rows()) + draw.randrange(10)
        child.start()
        while child.is_alive() and len(self.rows()) < wanted:
            time.sleep(0.002)
        time.sleep(draw.random() * 0.1)
        child.kill()
        child.join()
        self.assertIn(child.exitcode, (0, -signal.SIGKILL))
        return child.exitcode != 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["train"]:
        train(sys.argv[2], sys.argv[3] == "1")
    else:
        unittest.main()
