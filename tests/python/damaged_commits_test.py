"""A damaged commit that is asked for is refused and stays; a run's next start says what it left."""

from __future__ import annotations

import os
import pathlib
import unittest
from typing import Any

import numpy
import optimizer_support  # noqa: F401  (finds the package)
import penstock
import torch
from optimizer_support import OptimizerTest
from penstock.errors import CorruptionError


class DamagedCommits(OptimizerTest):
    def training(self, level: int, run: str | None) -> Any:
        """Returns a module, and its optimizer, which is closed at the end of the test."""
        model: Any = torch.nn.Linear(8, 8)
        drive = self.drive(level)
        drive.mkdir(exist_ok=True)
        if level == 1:
            optimizer: Any = penstock.AdamW(model.parameters(), run=run, nvme_path=drive)
        else:
            home = {"device": "nvme", "nvme_path": str(drive)}
            offload = {"stage": 3, "offload_optimizer": home, "offload_param": home}
            config = {
                "gradient_clipping": 1.0,
                "optimizer": {"type": "AdamW", "params": {"weight_decay": 0.0}},
                "zero_optimization": offload,
            }
            _, optimizer = penstock.initialize(model, config, run=run)
        self.addCleanup(optimizer.close)
        return model, optimizer

    def drive(self, level: int) -> pathlib.Path:
        return pathlib.Path(self.folder, f"drive-{level}")

    def damaged(self, level: int) -> tuple[dict[str, Any], pathlib.Path]:
        """Trains for two steps with a commit each, and damages the second. Returns its state_dict
        and the state file."""
        model, optimizer = self.training(level, os.path.join(self.folder, f"run-{level}"))
        contents = []
        for _ in range(2):
            model(torch.ones(2, 8)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            saved = optimizer.state_dict()
            (file,) = self.drive(level).glob("*.state")
            contents.append(numpy.fromfile(file, dtype=numpy.uint8))
        optimizer.snapshot(os.path.join(self.folder, f"kept-{level}"))
        optimizer.close()
        first, second = contents
        second[numpy.flatnonzero(first != second)[-1]] ^= 0xFF
        second.tofile(file)
        return saved, file

    def test_a_damaged_commit_that_a_state_dict_names_is_refused_and_stays(self) -> None:
        for level in (1, 2):
            with self.subTest(level=level):
                saved, file = self.damaged(level)
                before = file.read_bytes()
                _, optimizer = self.training(level, None)
                with self.assertRaises(CorruptionError) as caught:
                    optimizer.load_state_dict(saved)
                self.assert_line(caught.exception, str(file), "commit of step 2 is damaged: ")
                self.assertEqual(file.read_bytes(), before)
                self.assertEqual([str(p) for p in self.drive(level).glob("*.state")], [str(file)])

    def test_a_damaged_commit_is_taken_from_the_snapshot_that_a_state_dict_names(self) -> None:
        for level in (1, 2):
            with self.subTest(level=level):
                saved, file = self.damaged(level)
                saved["penstock"]["snapshot"] = os.path.join(self.folder, f"kept-{level}")
                _, optimizer = self.training(level, None)
                with self.assertLogs("penstock", "WARNING") as logs:
                    optimizer.load_state_dict(saved)
                self.assertEqual(optimizer.steps, 2)
                self.assertIn(f"{file}: the commit of step 2 is damaged", logs.output[0])

    def test_a_run_that_continues_an_older_commit_warns(self) -> None:
        for level in (1, 2):
            with self.subTest(level=level):
                self.damaged(level)
                with self.assertLogs("penstock", "WARNING") as logs:
                    _, optimizer = self.training(level, os.path.join(self.folder, f"run-{level}"))
                self.assertEqual(optimizer.steps, 1)
                self.assertEqual(len(logs.output), 1)
                self.assertIn("the commit of step 2 is damaged", logs.output[0])


if __name__ == "__main__":
    unittest.main()
