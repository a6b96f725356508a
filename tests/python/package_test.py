"""The wheel: small, for every Python, with its libraries in it, and of use without torch."""

from __future__ import annotations

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
import zipfile

WHEEL = os.environ.get("PENSTOCK_WHEEL", "")
# What every Linux of the wheel's name has.
SYSTEM = re.compile(r"(linux-vdso|/lib64/ld-linux|lib(c|m|dl|rt|pthread|gcc_s|stdc\+\+)\.so)")
# Two of a kind in one process fight, and torch has its own.
NEVER = re.compile(r"dnnl|gomp|iomp|OpenCL|pmix|gloo|cuda|cublas|nccl")

# Minimises |w|^2 with the states on nvme, and commits: the package with Python alone.
TRAINING = """
import ctypes, sys, tempfile
from penstock import _library as c

with tempfile.TemporaryDirectory() as folder:
    nvme = {"device": "nvme", "nvme_path": folder}
    config = {"train_micro_batch_size_per_gpu": 1,
              "optimizer": {"type": "AdamW", "params": {"lr": 0.1}},
              "zero_optimization": {"stage": 3, "offload_optimizer": nvme, "offload_param": nvme}}
    model = {"units": [{"name": "w", "tensors": [{"name": "w", "shape": [4], "group": 0}]}],
             "groups": [{"name": "all"}]}
    engine = c.Engine(config, model, {"folders": [folder]})
    buffer = (ctypes.c_float * (engine.describe()["units"][0]["bytes"] // 4))(1, 2, 3, 4)
    gradient = (ctypes.c_float * 4)()
    engine.fill(0, [ctypes.addressof(buffer)])
    for _ in range(60):
        engine.use(0, c.FORWARD, ctypes.addressof(buffer))
        for i in range(4):
            gradient[i] = 2 * buffer[i]
        engine.gradient(0, 0, ctypes.addressof(gradient), c.DTYPES["fp32"])
        outcome = engine.end_step([c.Group(0.1, 0.9, 0.999, 1e-8, 0.0)])
    engine.begin_commit(b'{"of": "a test"}')
    engine.finish_commit()
    engine.close()
    assert max(map(abs, buffer[:4])) < 0.1, list(buffer[:4])
    assert "torch" not in sys.modules and "numpy" not in sys.modules
print(outcome.step)
"""


def other_pythons() -> list[pathlib.Path]:
    """Pythons of this machine, the newest and the oldest that the package is for, by version."""
    found = {}
    folders = [pathlib.Path(p) for p in os.environ["PATH"].split(os.pathsep)]
    folders += pathlib.Path.home().glob(".pyenv/versions/*/bin")
    for folder in [pathlib.Path("/usr/bin"), *folders]:
        for python in folder.glob("python3.*"):
            version = re.fullmatch(r"python3\.(\d+)", python.name)
            if not version or int(version[1]) < 9 or folder.name == "shims":
                continue
            if subprocess.run([python, "-c", "import venv, ctypes"], check=False).returncode == 0:
                found[int(version[1])] = python
    return [found[minor] for minor in sorted({min(found), max(found)} if found else ())]


@unittest.skipUnless(WHEEL, "PENSTOCK_WHEEL does not name the wheel; run scripts/test_python")
class Wheel(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)

    def unpack(self, to: pathlib.Path) -> None:
        with zipfile.ZipFile(WHEEL) as files:
            files.extractall(to)

    @unittest.skipUnless(
        shutil.which("nvcc", path=os.environ["PATH"] + ":/usr/local/cuda/bin"),
        "no CUDA toolkit, with which the wheel has kernels",
    )
    def test_a_wheel_that_is_made_with_the_cuda_toolkit_has_kernels(self) -> None:
        self.unpack(self.root)
        (library,) = self.root.rglob("libpenstock.so")
        sections = subprocess.run(
            ["readelf", "--sections", "--wide", library], check=True, capture_output=True, text=True
        ).stdout
        self.assertIn(".nv_fatbin", sections)

    def test_it_is_one_wheel_for_every_python_and_below_ten_megabytes(self) -> None:
        name = pathlib.Path(WHEEL).name
        self.assertRegex(name, r"^penstock-[0-9.]+-py3-none-manylinux_2_\d+_(x86_64|aarch64)\.whl$")
        self.assertLess(pathlib.Path(WHEEL).stat().st_size, 10e6)
        with zipfile.ZipFile(WHEEL) as files:
            self.assertIn("penstock/py.typed", files.namelist())
            self.assertIn("penstock/lib/libpenstock.so", files.namelist())

    def test_its_libraries_need_each_other_and_what_every_linux_has(self) -> None:
        self.unpack(self.root)
        lib = self.root / "penstock/lib"
        for name in ("libpenstock.so", "penstock"):
            needed = subprocess.run(
                ["ldd", lib / name], check=True, capture_output=True, text=True
            ).stdout.split("\n\t")
            for line in map(str.strip, needed):
                self.assertNotRegex(line, NEVER)
                if not SYSTEM.match(line):
                    self.assertIn(f"=> {lib}/", line)
            self.assertGreater(len(needed), 5)

    def test_its_name_says_from_which_c_library_on_it_runs(self) -> None:
        self.unpack(self.root)
        named = re.search(r"manylinux_2_(\d+)_", WHEEL)
        assert named is not None
        for library in (self.root / "penstock/lib").iterdir():
            command = ["readelf", "--wide", "--version-info", str(library)]
            said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            asked = [int(minor) for minor in re.findall(r"GLIBC_2\.(\d+)", said)]
            self.assertTrue(asked and max(asked) <= int(named[1]), library.name)

    def test_it_trains_in_an_empty_environment_of_the_oldest_and_the_newest_python(self) -> None:
        pythons = other_pythons()
        self.assertTrue(pythons)
        for python in pythons:
            with self.subTest(python=str(python)):
                folder = self.root / python.name
                subprocess.run([python, "-m", "venv", "--without-pip", folder], check=True)
                (site,) = folder.glob("lib/python*/site-packages")
                self.unpack(site)
                done = subprocess.run(
                    [folder / "bin/python", "-I", "-c", TRAINING],
                    check=False,
                    capture_output=True,
                    text=True,
                )
                self.assertEqual((done.returncode, done.stdout), (0, "60\n"), done.stderr)


class Import(unittest.TestCase):
    def test_importing_the_package_imports_neither_torch_nor_numpy(self) -> None:
        done = subprocess.run(
            [
                sys.executable,
                "-c",
                "import sys, penstock; print({'torch', 'numpy'} & set(sys.modules))",
            ],
            check=False,
            capture_output=True,
            text=True,
        )
        self.assertEqual((done.returncode, done.stdout), (0, "set()\n"), done.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
