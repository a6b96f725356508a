"""States that are attached may be of any size: long ones are in the caller's file of a commit
(docs/run_format.md, "The text of a commit"), which goes where the state goes.
"""

from __future__ import annotations

import os
import pathlib
import shutil
import unittest
from typing import Any
from unittest import mock

import optimizer_support  # noqa: F401  (finds the package)
import penstock
import torch
from optimizer_support import OptimizerTest
from penstock import _state
from penstock.errors import CorruptionError, InvalidArgumentError, PenstockError

SHORT = 100
LONG = 1 << 20
LONGER = 20 << 20


class Buffer:
    """A tensor of a size, with other bytes after each step."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.values = self.of(0)

    def of(self, step: int) -> torch.Tensor:
        return torch.arange(self.size, dtype=torch.int64).add(step).to(torch.uint8)

    def state_dict(self) -> dict[str, Any]:
        return {"values": self.values}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.values = state["values"]


class Training:
    """A training at a level, with something attached."""

    def __init__(self, test: CallerFiles, size: int, run: str | None = "run") -> None:
        test.drive.mkdir(exist_ok=True)
        torch.manual_seed(0)
        self.model: Any = torch.nn.Linear(8, 8)
        folder = run and os.path.join(test.folder, run)
        if test.level == 1:
            self.optimizer: Any = penstock.AdamW(
                self.model.parameters(), run=folder, nvme_path=test.drive
            )
        else:
            home = {"device": "nvme", "nvme_path": str(test.drive)}
            offload = {"stage": 3, "offload_optimizer": home, "offload_param": home}
            config = {
                "gradient_clipping": 1.0,
                "optimizer": {"type": "AdamW", "params": {"weight_decay": 0.0}},
                "zero_optimization": offload,
            }
            self.model, self.optimizer = penstock.initialize(self.model, config, run=folder)
        test.addCleanup(self.optimizer.close)
        self.buffer = Buffer(size)

    def attach(self) -> int:
        self.optimizer.attach(buffer=self.buffer)
        steps: int = self.optimizer.steps
        return steps

    def step(self) -> None:
        self.model(torch.ones(2, 8)).sum().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.buffer.values = self.buffer.of(self.optimizer.steps)

    def commits(self, steps: int) -> None:
        for _ in range(steps):
            self.step()
            self.optimizer.commit()

    def holds(self, step: int) -> bool:
        return torch.equal(self.buffer.values, self.buffer.of(step))


class CallerFiles(OptimizerTest):
    level = 1

    @property
    def drive(self) -> pathlib.Path:
        return pathlib.Path(self.folder, "drive")

    def files(self, folder: pathlib.Path | None = None) -> list[str]:
        """Returns the endings of the callers' files in a folder."""
        found = (folder or self.drive).glob("*.caller-*")
        return sorted(file.name.rsplit(".", 1)[1] for file in found)

    def test_a_run_resumes_with_what_was_attached_whatever_its_size(self) -> None:
        for size, files in ((LONG, 2), (LONGER, 2), (SHORT, 0)):
            training = Training(self, size)
            training.attach()
            training.buffer.values = training.buffer.of(training.optimizer.steps)
            training.commits(2)
            steps = training.optimizer.steps
            training.optimizer.close()
            self.assertEqual(len(self.files()), files)
            again = Training(self, size)
            self.assertEqual(again.attach(), steps)
            self.assertTrue(again.holds(steps), f"{size} bytes")
            again.optimizer.close()

    def test_a_commit_whose_file_is_damaged_or_gone_is_left_with_a_warning(self) -> None:
        def flip(file: pathlib.Path) -> None:
            content = bytearray(file.read_bytes())
            content[len(content) // 2] ^= 1
            file.write_bytes(content)

        for damage in (flip, os.remove):
            training = Training(self, LONG)
            training.attach()
            training.commits(1)
            training.step()
            saved = training.optimizer.state_dict()  # the second commit
            training.optimizer.close()
            (file,) = self.drive.glob("*.caller-0")
            damage(file)
            other = Training(self, LONG, run=None)
            with self.assertRaises(CorruptionError) as caught:
                other.optimizer.load_state_dict(saved)
            self.assert_line(caught.exception, "commit of step 2 is damaged", str(file))
            other.optimizer.close()
            with self.assertLogs("penstock", "WARNING") as logs:
                again = Training(self, LONG)
            self.assertEqual(len(logs.output), 1)
            self.assertIn("the commit of step 2 is damaged", logs.output[0])
            self.assertIn(str(file), logs.output[0])
            self.assertEqual(again.attach(), 1)
            self.assertTrue(again.holds(1))
            again.optimizer.close()
            shutil.rmtree(os.path.join(self.folder, "run"))
            shutil.rmtree(self.drive)

    def test_snapshots_copies_and_moved_states_have_it_and_each_its_own(self) -> None:
        training = Training(self, LONG)
        training.attach()
        training.commits(1)
        saved = training.optimizer.state_dict()
        kept = training.optimizer.snapshot("kept")
        copy = training.optimizer.snapshot(os.path.join(self.folder, "copy"))
        training.commits(2)
        self.assertEqual(self.files(), ["caller-0", "caller-0", "caller-1"])
        self.assertEqual(self.files(pathlib.Path(copy)), ["caller-0"])
        training.optimizer.close()
        # The copy is moved, with its state.
        moved = os.path.join(self.folder, "moved")
        os.rename(copy, moved)
        other = Training(self, LONG, moved)
        self.assertEqual(other.attach(), 1)
        self.assertTrue(other.holds(1))
        other.commits(1)
        self.assertEqual(self.files(pathlib.Path(moved)), ["caller-0", "caller-1"])
        other.optimizer.close()
        # The run is moved, and goes back to its snapshot.
        elsewhere = os.path.join(self.folder, "elsewhere")
        os.rename(os.path.join(self.folder, "run"), elsewhere)
        back = Training(self, LONG, elsewhere)
        self.assertEqual(back.attach(), 3)
        self.assertTrue(back.holds(3))
        saved["penstock"]["snapshot"] = os.path.join(elsewhere, "snapshots", "kept")
        self.assertEqual(os.path.basename(kept), "kept")
        back.optimizer.load_state_dict(saved)
        self.assertEqual(back.attach(), 1)
        self.assertTrue(back.holds(1))
        back.optimizer.close()
        # The run's own, and that of its snapshot; those of the state before are gone.
        self.assertEqual(len(self.files()), 2)

    def test_a_run_whose_first_commit_fails_leaves_none(self) -> None:
        training = Training(self, LONG)
        training.attach()
        training.step()
        (state,) = self.drive.glob("*.state")
        in_the_way = state.with_suffix(".caller-1")
        in_the_way.mkdir()
        with self.assertRaises(PenstockError) as caught:
            training.optimizer.commit()
        self.assert_line(caught.exception, str(in_the_way))
        training.optimizer.close()
        self.assertEqual(list(self.drive.iterdir()), [in_the_way])
        self.assertFalse(os.path.exists(os.path.join(self.folder, "run")))

    def test_what_no_commit_holds_is_refused_by_the_name_of_the_largest(self) -> None:
        training = Training(self, LONG)
        training.attach()
        training.commits(1)
        training.step()
        with mock.patch.object(_state, "MAX_BYTES", 1 << 20):
            with self.assertRaises(InvalidArgumentError) as caught:
                training.optimizer.commit()
            self.assert_line(caught.exception, "room for 1048576; most is buffer with ")
        training.optimizer.commit()
        training.optimizer.close()
        self.assertEqual(Training(self, LONG).attach(), 2)

    def test_a_file_that_cannot_be_written_is_one_line_and_the_commit_before_stays(self) -> None:
        training = Training(self, LONG)
        training.attach()
        training.commits(1)
        (state,) = self.drive.glob("*.state")
        in_the_way = state.with_suffix(".caller-0")
        in_the_way.mkdir()
        training.step()
        with self.assertRaises(PenstockError) as caught:
            training.optimizer.commit()
        self.assert_line(caught.exception, str(in_the_way))
        training.optimizer.close()
        in_the_way.rmdir()
        again = Training(self, LONG)
        self.assertEqual(again.attach(), 1)
        self.assertTrue(again.holds(1))
        again.optimizer.close()


class CallerFilesOfLevel2(CallerFiles):
    level = 2


if __name__ == "__main__":
    unittest.main()
