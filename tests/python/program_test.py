"""The command ``penstock`` of the installed package: all tools, on runs of the package, and no train."""

from __future__ import annotations

import importlib.metadata
import json
import os
import pathlib
import re
import subprocess
import sys
import sysconfig
import tempfile
import unittest

# Nothing of this tree: the package is the one that is installed.
WHEEL = os.environ.get("PENSTOCK_WHEEL", "")
TOOLS = (
    "plan",
    "export",
    "inspect",
    "numerics",
    "compare",
    "snapshot",
    "snapshots",
    "clean",
    "tune",
    "doctor",
)
ELSEWHERE = ("train", "replay", "launch")
TRAINING = """
import os, sys
import penstock, torch

folder = sys.argv[1]
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 2))
model, optimizer = penstock.initialize(model, {}, run=os.path.join(folder, "run"))
for step in range(3):
    loss = model(torch.ones(2, 4)).square().sum()
    loss.backward()
    optimizer.step(loss=loss)
    optimizer.zero_grad()
    if step == 1:
        optimizer.snapshot(os.path.join(folder, "kept"))
optimizer.commit()
optimizer.close()
"""


@unittest.skipUnless(WHEEL, "PENSTOCK_WHEEL does not name the wheel; run scripts/test_python")
class Program(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        folder = tempfile.TemporaryDirectory(prefix="penstock-test-")
        cls.addClassCleanup(folder.cleanup)
        cls.folder = folder.name
        subprocess.run([sys.executable, "-c", TRAINING, cls.folder], check=True)

    def penstock(self, *arguments: str, code: int = 0) -> str:
        """Runs the command; returns what it says."""
        command = os.path.join(sysconfig.get_path("scripts"), "penstock")
        done = subprocess.run(
            [command, *arguments], check=False, capture_output=True, text=True, cwd=self.folder
        )
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done.stdout + done.stderr

    def test_it_says_its_version_and_its_tools(self) -> None:
        version = self.penstock("--version")
        self.assertEqual(version, f"penstock {importlib.metadata.version('penstock')}\n")
        listed = re.findall(r"(?m)^  ([a-z]+) ", self.penstock("--help"))
        self.assertEqual(sorted(listed), sorted(TOOLS))
        for tool in TOOLS:
            self.assertIn(tool, self.penstock(tool, "--help"))
        as_module = subprocess.run(
            [sys.executable, "-m", "penstock", "--version"], capture_output=True, text=True
        )
        self.assertEqual(as_module.stdout, version)

    def test_what_trains_is_refused_with_where_it_is(self) -> None:
        for command in ELSEWHERE:
            said = self.penstock(command, "--model", "m", code=2)
            self.assertRegex(
                said, rf"\Apenstock: error: {command} is not in the Python package, [^\n]+\n\Z"
            )
            self.assertIn("source", said)
        self.assertIn("unknown command", self.penstock("trian", code=2))

    def test_the_tools_read_runs_and_snapshots_of_the_package(self) -> None:
        self.assertIn("step 3", self.penstock("inspect", "run"))
        self.assertIn("step 2", self.penstock("inspect", "kept"))
        self.penstock("compare", "run", "run")
        self.assertIn("weight", self.penstock("compare", "run", "kept", code=1))
        self.assertIn("step 3", self.penstock("export", "run", "--to", "out"))
        self.assertEqual(
            sorted(p.suffix for p in pathlib.Path(self.folder, "out").iterdir()), [".safetensors"]
        )
        self.penstock("compare", "run", "out")
        self.assertIn("3 steps (0 skipped)", self.penstock("numerics", "run"))
        self.assertIn("2 steps (0 skipped)", self.penstock("numerics", "kept"))
        self.assertIn("step 3", self.penstock("snapshot", "run", "mine"))
        self.assertIn("mine", self.penstock("snapshots", "run"))
        self.penstock("compare", "run", "run/snapshots/mine")
        self.penstock("clean", "run/snapshots/mine", "--yes")
        self.assertEqual(self.penstock("snapshots", "run"), "no snapshots\n")
        self.assertIn("nothing is removed", self.penstock("clean", "run"))

    def test_the_doctor_looks_at_this_machine_and_at_a_run(self) -> None:
        command = os.path.join(sysconfig.get_path("scripts"), "penstock")
        done = subprocess.run(
            [command, "doctor", "run"], check=False, capture_output=True, text=True, cwd=self.folder
        )
        self.assertIn(done.returncode, (0, 1), done.stderr)  # 1: of the machine
        self.assertIn("program", done.stdout)
        self.assertIn("the Python package (module), 3 steps up to 3", done.stdout)
        self.assertNotIn("error", done.stderr)

    def test_a_plan_needs_no_operators(self) -> None:
        nvme = {"device": "nvme", "nvme_path": self.folder}
        config = pathlib.Path(self.folder, "config.json")
        config.write_text(
            json.dumps(
                {
                    "train_micro_batch_size_per_gpu": 1,
                    "zero_optimization": {
                        "stage": 3,
                        "offload_optimizer": nvme,
                        "offload_param": nvme,
                    },
                }
            )
        )
        shape = "gpt2:h=64,l=2,v=256,s=64,heads=4"
        plan = json.loads(
            self.penstock(
                *("plan", "--model", shape, "--config", str(config), "--json"),
                *("--device-tflops", "1", "--drive", "2,1"),
            )
        )
        self.assertEqual(plan["parameters"], 120576)
        self.assertTrue(plan["fits"])
        self.assertGreater(plan["step_s"], 0)
        shapes = self.penstock("plan", "--model", shape, "--as", "deepspeed")
        self.assertIn("offload", shapes)


if __name__ == "__main__":
    unittest.main()
