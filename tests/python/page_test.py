"""Every block of docs/pytorch.md does what the page says."""

from __future__ import annotations

import importlib.util
import os
import pathlib
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(os.environ.get("PENSTOCK_SOURCE", pathlib.Path(__file__).parents[2]))
BUILT = ROOT / "build" / "release" / "front" / "libpenstock.so"
PAGE = ROOT / "docs" / "pytorch.md"
HAS_TRANSFORMERS = all(importlib.util.find_spec(name) for name in ("torch", "transformers"))
DEADLINE = 280  # seconds: only what hangs is ended


def blocks(kind: str) -> list[str]:
    """The fenced blocks of a kind, in their order."""
    text = PAGE.read_text(encoding="utf-8")
    found = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [block for of, block in found if of == kind]


@unittest.skipUnless(HAS_TRANSFORMERS, "torch or transformers is not installed")
class Page(unittest.TestCase):
    folder: pathlib.Path
    environment: dict[str, str]

    @classmethod
    def setUpClass(cls) -> None:
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name)
        python = blocks("python")
        for name, text in zip(("task.py", "train.py", "offload.py"), python):
            (cls.folder / name).write_text(text, encoding="utf-8")
        (cls.folder / "ds_config.json").write_text(blocks("json")[0], encoding="utf-8")
        (cls.folder / "corpus.txt").write_text(PAGE.read_text(encoding="utf-8") * 2)
        (cls.folder / "nvme").mkdir()
        cls.environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        if "PENSTOCK_WHEEL" not in os.environ:  # else the installed package
            cls.environment["PYTHONPATH"] = str(ROOT / "python")
            cls.environment.setdefault("PENSTOCK_LIBRARY", str(BUILT))

    def line(self, beginning: str) -> list[str]:
        """The words of the page's first command that begins so."""
        for block in blocks(""):
            for line in block.splitlines():
                if line.startswith(beginning):
                    return [sys.executable, *shlex.split(line.split("  #")[0])[1:]]
        self.fail(f"the page has no command {beginning}")

    def start(self, beginning: str) -> subprocess.Popen[str]:
        started = subprocess.Popen(
            self.line(beginning),
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.addCleanup(started.kill)
        return started

    def losses(self, beginning: str) -> list[str]:
        started = self.start(beginning)
        out, err = started.communicate(timeout=DEADLINE)
        self.assertEqual(started.returncode, 0, err)
        return out.splitlines()

    def test_a_killed_run_resumes_with_the_losses_of_one_that_is_not(self) -> None:
        whole = self.losses("python train.py runs/a")
        self.assertEqual([line.split()[0] for line in whole], [str(n) for n in range(20)])
        self.assertLess(float(whole[-1].split()[1]), float(whole[0].split()[1]))
        killed = self.start("python train.py runs/b")
        assert killed.stdout is not None
        for line in killed.stdout:
            if line.startswith("12 "):
                break
        killed.send_signal(signal.SIGKILL)
        killed.communicate(timeout=DEADLINE)
        resumed = self.losses("python train.py runs/b")
        self.assertIn(resumed[0].split()[0], ("5", "10"))
        self.assertEqual(resumed, whole[-len(resumed) :])

    def test_the_second_level_trains_by_a_checked_configuration_and_saves(self) -> None:
        self.losses('python -c "from task import make_model')
        said = "\n".join(self.losses("python -m penstock.check"))
        self.assertRegex(said, r"\n  fits +yes")
        self.assertNotIn("refused", said)
        losses = self.losses("python offload.py runs/c")
        self.assertEqual(len(losses), 20)
        self.assertLess(float(losses[-1].split()[1]), float(losses[0].split()[1]))
        self.assertTrue((self.folder / "trained/model.safetensors").stat().st_size > 1e5)


if __name__ == "__main__":
    unittest.main(verbosity=2)
