"""The parts of scripts/gpu/gpu-day that are torch's, at tiny sizes: on this machine's GPU if torch
sees one, and else on the CPU."""

from __future__ import annotations

import contextlib
import io
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest
import zipfile
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import optimizer_support  # noqa: F401  it finds the package in this tree
import torch

SOURCE = pathlib.Path(os.environ.get("PENSTOCK_SOURCE", pathlib.Path(__file__).parents[2]))
KIT = SOURCE / "scripts/gpu"
sys.path[:0] = [str(KIT), str(KIT / "parts")]
import bits
from day import plan, report

TIMEOUT_S = 280
# Stands in for DeepSpeed: an operator is compiled unless one is being compiled beside it.
DEEPSPEED = """
import os, pathlib
class Builder:
    def load(self, verbose):
        locks = list(pathlib.Path(os.environ["TORCH_EXTENSIONS_DIR"]).glob("*/lock"))
        assert not locks, locks
class Accelerator:
    def create_op_builder(self, name):
        assert name in ("CPUAdamBuilder", "AsyncIOBuilder", "UtilsBuilder")
        return Builder()
def get_accelerator():
    return Accelerator()
"""
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def contenders() -> list[str]:
    """Those of all parts of a day, once each."""
    parts = [part for group in plan.make(KIT, plan.TINY) for part in group.parts]
    commands = [
        part.command for part in parts if part.command[1:2] == (str(KIT / "parts/steps.py"),)
    ]
    found = dict.fromkeys(word for command in commands for word in command[2:])
    return [word.replace("device=cpu", f"device={DEVICE}") for word in found]


class GpuDayTest(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory(prefix="gpu-day-", dir=os.environ.get("TMPDIR"))
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        # The package of this process is that of the parts.
        self.environment = dict(os.environ)
        path = [str(pathlib.Path(optimizer_support.penstock.__file__).parents[1])]
        self.environment["PYTHONPATH"] = ":".join(path)

    def part(self, name: str, *words: str, **more: str) -> tuple[int, str, list[dict[str, Any]]]:
        """Runs a part as the runner does; returns exit code, log and results."""
        for folder in ("scratch", "drive", "out", "work/logs"):
            (self.folder / folder).mkdir(parents=True, exist_ok=True)
        path = [str(KIT), str(KIT / "parts"), self.environment["PYTHONPATH"]]
        environment = {
            **self.environment,
            "PYTHONPATH": ":".join(path),
            "PENSTOCK_DAY_WORK": str(self.folder / "work"),
            "PENSTOCK_DAY_OUT": str(self.folder / "out"),
            "PENSTOCK_DAY_SCRATCH": str(self.folder / "scratch"),
            "PENSTOCK_DAY_DRIVE": str(self.folder / "drive"),
            "PENSTOCK_DAY_SECONDS": str(TIMEOUT_S),
            **more,
        }
        done = subprocess.run(
            [sys.executable, str(KIT / "parts" / name), *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=TIMEOUT_S,
            env=environment,
        )
        return done.returncode, done.stdout, report.results_in(done.stdout, name)

    def test_both_levels_have_the_bits_of_the_reference(self) -> None:
        """With a GPU, this is where the package is compared on it."""
        code, log, results = self.part("bits.py", DEVICE, "bfloat16")
        self.assertEqual(code, 0, log)
        equal = [row["name"] for row in results if row.get("bits") == "equal"]
        for cell in (
            "torch twice",
            "level 1, cpu",
            "level 1, nvme",
            "level 2, cpu",
            "level 2, nvme",
        ):
            self.assertTrue([name for name in equal if name.startswith(cell)], (cell, log))
        self.assertEqual([row for row in results if row.get("bits", "equal") != "equal"], [])

    def test_one_weight_that_differs_fails_the_part(self) -> None:
        weights = [torch.zeros(3), torch.ones(2)]
        other = [torch.zeros(3), torch.tensor([1.0, 1.0 + 2**-23])]
        compared = bits.Bits(DEVICE)
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            compared.compare("a", ([1.0], weights), lambda: ([1.0], weights))
            self.assertEqual(compared.bad, 0)
            compared.compare("b", ([1.0], weights), lambda: ([1.0], other))
            self.assertEqual(compared.bad, 1)
            compared.compare("c", ([1.0], weights), lambda: ([2.0], weights))
            self.assertEqual(compared.bad, 2)
        self.assertEqual(said.getvalue().count('"DIFFER"'), 2)

    def test_every_contender_runs_or_says_what_is_missing_and_a_crash_or_a_hang_is_lost_alone(
        self,
    ) -> None:
        words = contenders()
        self.assertGreater(len(words), 8)
        tiny = "layers=1,width=32,vocabulary=99"
        crash = f"level1:device=nowhere,{tiny}"
        hang = f"torch:device={DEVICE},{tiny},steps=1000000,seconds=2"
        code, log, results = self.part("steps.py", crash, hang, *words)
        self.assertEqual(code, 1, log)
        errors = [row["error"] for row in results if "error" in row]
        self.assertEqual(len(errors), 2, log)
        self.assertIn("took more than", errors[1])
        done = [row["name"] for row in results if row.get("done")]
        for name in ("torch", "level1, cpu", "level2, cpu", "level2, nvme"):
            self.assertIn(name, done, log)
        self.assertIn("level2, cpu, 4 micro-batches", done, log)
        phases = next(row for row in results if row["name"] == "torch" and row.get("done"))
        self.assertGreater(phases["backward_s"], 0)
        self.assertTrue((self.folder / "out/trace-level2.json.gz").is_file())

    def test_without_torch_a_part_is_left_out(self) -> None:
        done = subprocess.run(
            [sys.executable, "-S", str(KIT / "parts/bits.py"), "cpu"],
            env={**os.environ, "PYTHONPATH": f"{KIT}:{KIT / 'parts'}"},
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        )
        self.assertEqual(done.returncode, plan.LEFT_OUT)
        self.assertIn("missing: this Python has no torch", done.stdout)

    def test_deepspeed_is_installed_and_compiled_also_after_a_build_that_was_ended(self) -> None:
        kit = self.folder / "kit"
        shutil.copytree(KIT / "parts", kit / "parts")
        for folder in ("wheels", "aio"):
            (kit / folder).mkdir()
        (kit / "aio/libaio.so.1").touch()
        with zipfile.ZipFile(kit / "wheels/deepspeed-0.0-py3-none-any.whl", "w") as wheel:
            wheel.writestr("deepspeed/__init__.py", "")
            wheel.writestr("deepspeed/accelerator.py", DEEPSPEED)
            info = "deepspeed-0.0.dist-info/"
            wheel.writestr(
                info + "METADATA", "Metadata-Version: 2.1\nName: deepspeed\nVersion: 0.0\n"
            )
            wheel.writestr(info + "WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
            wheel.writestr(info + "RECORD", "")
        lock = self.folder / "work/ds-operators/cpu_adam/lock"
        lock.parent.mkdir(parents=True)
        lock.touch()
        self.environment["PYTHONPATH"] += f":{self.folder / 'work/site'}"
        code, log, results = self.part(str(kit / "parts/ds_ops.py"))
        self.assertEqual(code, 0, log)
        self.assertEqual([row["built"] for row in results], [True] * 3)

    def test_without_wheels_deepspeed_is_left_out(self) -> None:
        code, log, _ = self.part("ds_ops.py")
        self.assertEqual(code, plan.LEFT_OUT, log)
        self.assertIn("missing: the bundle has no wheels of DeepSpeed", log)


if __name__ == "__main__":
    unittest.main()
