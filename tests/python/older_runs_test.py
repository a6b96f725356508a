"""Runs of the package that commit 3077072 has made are resumed with the bits that it computed itself
(tests/older_runs; tests/e2e/older_runs_test.py has what the commands read of them before).
"""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
import sysconfig
import unittest
from typing import Any

import optimizer_support  # noqa: F401  (finds the package)
from optimizer_support import ROOT, OptimizerTest
from penstock._run import state_of

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "older_runs"))

import older_runs
import package_training
from package_training import Training


def program() -> pathlib.Path | None:
    """The command: of the wheel, or of this tree."""
    if os.environ.get("PENSTOCK_WHEEL"):
        return pathlib.Path(sysconfig.get_path("scripts"), "penstock")
    built = ROOT / "build" / "release" / "train" / "penstock"
    return built if built.exists() else None


class OlderRunsTest(OptimizerTest):
    def unpacked(self, name: str) -> tuple[str, str]:
        """Unpacks a run; returns its kind and its folder."""
        self.runs += 1
        self.root = os.path.join(os.path.realpath(self.folder), f"{name}-{self.runs}")
        self.recorded = older_runs.unpack(name, self.root)
        kind, self.place = name.split("-")
        self.nvme = package_training.places(self.root, self.place)[1]
        self.saved: dict[str, Any] = json.loads(
            pathlib.Path(self.root, "state_dict.json").read_text()
        )
        return kind, older_runs.package_run(self.root)

    def training(self, kind: str, run: str) -> Training:
        training = Training(kind, run, self.nvme)
        self.addCleanup(training.optimizer.close)
        return training

    def assert_resumes(self, training: Training, steps: int) -> None:
        """A training goes on behind so many steps with the recorded losses and weights, and commits."""
        losses = self.recorded["losses"]
        self.assertEqual(training.optimizer.steps, steps)
        self.assertEqual([training.step() for _ in losses[steps:]], losses[steps:])
        self.assertEqual(training.weights(), self.recorded["after"])
        training.optimizer.commit()
        training.optimizer.close()

    def penstock(self, *arguments: str, codes: tuple[int, ...] = (0,)) -> str:
        """Runs a command; returns what it says."""
        command = program()
        if command is None:
            self.skipTest("no program: neither PENSTOCK_WHEEL nor a build of this tree")
        done = subprocess.run(
            [command, *arguments], check=False, capture_output=True, text=True, cwd=self.root
        )
        self.assertIn(done.returncode, codes, done.stdout + done.stderr)
        return done.stdout + done.stderr

    def exported(self, of: str) -> dict[str, str]:
        """The weights, in the dtype that the module has them in."""
        to = f"{os.path.basename(of)}-weights"
        dtype = ["--dtype", "bf16"] if self.place == "paths" else []
        self.penstock("export", of, "--to", to, *dtype)
        return older_runs.digests(os.path.join(self.root, to, "model.safetensors"))


class TheyAreResumed(OlderRunsTest):
    def test_a_run_goes_on_in_its_files(self) -> None:
        for name in older_runs.PACKAGE:
            with self.subTest(name):
                kind, run = self.unpacked(name)
                state = state_of(run)
                training = self.training(kind, run)
                self.assertEqual(training.attach(), 4)
                self.assertEqual(training.weights(), self.recorded["weights"])
                self.assert_resumes(training, 4)
                self.assertEqual(state_of(run), state)
                self.assertEqual(
                    json.loads(pathlib.Path(run, "run.json").read_text())["version"], 3
                )
                again = self.training(kind, run)
                self.assertEqual(again.attach(), 6)
                self.assertEqual(again.weights(), self.recorded["after"])
                again.optimizer.close()

    def test_a_snapshot_is_a_run_of_its_own(self) -> None:
        for name in older_runs.PACKAGE:
            with self.subTest(name):
                kind, run = self.unpacked(name)
                before = pathlib.Path(run, "run.json").read_bytes()
                training = self.training(kind, os.path.join(self.root, "kept"))
                self.assertEqual(training.attach(), 2)
                self.assertEqual(training.weights(), self.recorded["kept"])
                self.assert_resumes(training, 2)
                self.assertEqual(pathlib.Path(run, "run.json").read_bytes(), before)
                first = self.training(kind, run)
                self.assertEqual(first.attach(), 4)
                self.assert_resumes(first, 4)

    def test_a_saved_state_dict_goes_back_to_its_snapshot(self) -> None:
        for name in older_runs.PACKAGE:
            with self.subTest(name):
                kind, run = self.unpacked(name)
                training = self.training(kind, run)
                training.optimizer.load_state_dict(self.saved)
                self.assertEqual(training.attach(), 2)
                self.assertEqual(training.weights(), self.recorded["kept"])
                self.assert_resumes(training, 2)
                again = self.training(kind, os.path.join(self.root, "kept"))
                self.assertEqual(again.attach(), 2)
                again.optimizer.close()

    def test_the_commands_read_it_then(self) -> None:
        for name in older_runs.PACKAGE:
            with self.subTest(name):
                kind, run = self.unpacked(name)
                training = self.training(kind, run)
                training.attach()
                self.assert_resumes(training, 4)
                self.assertRegex(self.penstock("inspect", run), r"(?m)^checksums +all verified$")
                self.assertEqual(self.exported(run), self.recorded["after"])
                self.assertEqual(self.exported("kept"), self.recorded["kept"])
                self.penstock("export", run, "--to", "out")
                self.assertIn("equal bits", self.penstock("compare", run, "out"))
                self.penstock("compare", run, "kept", codes=(1,))
                self.assertEqual(self.penstock("snapshots", run), "no snapshots\n")
                self.penstock("numerics", run)
                said = self.penstock("doctor", run, codes=(0, 1))  # 1: of this machine
                self.assertNotIn("penstock: error", said)


if __name__ == "__main__":
    unittest.main()
