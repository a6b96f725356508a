"""The environment of the Python tests: made once, with stand-ins for CUDA; or a code that says why not."""

from __future__ import annotations

import importlib.util
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest
import zipfile

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "scripts/python-env"
# A torch of our own: one library that is linked to a versioned and to an unversioned symbol of
# CUDA's, and a module that loads it as the loader does with torch's.
TORCH = """
import ctypes, pathlib
library = ctypes.CDLL(str(pathlib.Path(__file__).parent / "lib/libtorch_cpu.so"), mode=2)
class cuda:
    def is_available():
        return library.count_devices() == 0
"""


def compile_library(
    folder: pathlib.Path, name: str, source: str, *options: str | pathlib.Path
) -> pathlib.Path:
    (folder / f"{name}.c").write_text(source, encoding="utf-8")
    subprocess.run(
        [
            "gcc",
            "-shared",
            "-fPIC",
            f"-Wl,-soname,{name}",
            "-o",
            folder / name,
            folder / f"{name}.c",
            *options,
        ],
        check=True,
    )
    return folder / name


@unittest.skipUnless(shutil.which("gcc"), "gcc is not installed")
@unittest.skipUnless(importlib.util.find_spec("ensurepip"), "python3-venv is not installed")
class PythonEnv(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        for name in ("scripts", "tests/python", "index", "cuda"):
            (self.root / name).mkdir(parents=True)
        shutil.copy(SCRIPT, self.root / "scripts")
        self.environment = {
            **os.environ,
            "PIP_NO_INDEX": "1",
            "PIP_CONFIG_FILE": os.devnull,
            "PIP_FIND_LINKS": str(self.root / "index"),
        }
        self.make_torch()
        self.require("torch==0.0.1")

    def make_torch(self) -> None:
        cuda = self.root / "cuda"
        (cuda / "map").write_text("libcudart.so.13 { global: cudaGetDeviceCount; };\n")
        cudart = compile_library(
            cuda,
            "libcudart.so.13",
            "int cudaGetDeviceCount(void) { return 0; }",
            f"-Wl,--version-script={cuda}/map",
        )
        nvshmem = compile_library(
            cuda, "libnvshmem_host.so.3", "int nvshmem_init(void) { return 0; }"
        )
        torch = compile_library(
            cuda,
            "libtorch_cpu.so",
            """
int cudaGetDeviceCount(void); int nvshmem_init(void);
int count_devices(void) { return cudaGetDeviceCount() == 100 && nvshmem_init() == 100 ? 1 : 0; }
""",
            cudart,
            nvshmem,
            "-Wl,-rpath,$ORIGIN",
        )
        with zipfile.ZipFile(self.root / "index/torch-0.0.1-py3-none-any.whl", "w") as wheel:
            wheel.write(torch, "torch/lib/libtorch_cpu.so")
            wheel.writestr("torch/__init__.py", TORCH)
            wheel.writestr(
                "torch-0.0.1.dist-info/METADATA",
                "Metadata-Version: 2.1\nName: torch\nVersion: 0.0.1\n",
            )
            wheel.writestr(
                "torch-0.0.1.dist-info/WHEEL",
                "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
            )
            wheel.writestr("torch-0.0.1.dist-info/RECORD", "")

    def require(self, text: str) -> None:
        text = f"# for Python 3.{sys.version_info[1]}\n{text}\n"
        (self.root / "tests/python/requirements.txt").write_text(text, encoding="utf-8")

    def make(self, folder: str = "env") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, self.root / "scripts/python-env", self.root / folder],
            env=self.environment,
            check=False,
            capture_output=True,
            text=True,
        )

    def test_cudas_libraries_are_replaced_once_and_again_if_the_requirements_change(self) -> None:
        done = self.make()
        self.assertEqual(done.returncode, 0, done.stderr)
        (lib,) = (self.root / "env/lib").glob("python*/site-packages/torch/lib")
        self.assertEqual(
            sorted(f.name for f in lib.iterdir()),
            ["libcudart.so.13", "libnvshmem_host.so.3", "libtorch_cpu.so"],
        )
        (self.root / "index").rename(self.root / "elsewhere")
        done = self.make()
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertIn("is up to date", done.stdout)
        # Other packages are another environment; and one that is not there is no matter of the machine.
        (self.root / "elsewhere").rename(self.root / "index")
        self.require("torch==0.0.2")
        done = self.make()
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn("torch==0.0.2", done.stderr)

    def test_an_index_that_cannot_be_reached_is_a_code_and_one_line(self) -> None:
        del self.environment["PIP_NO_INDEX"], self.environment["PIP_FIND_LINKS"]
        self.environment["PIP_INDEX_URL"] = "http://127.0.0.1:1/"
        done = self.make()
        self.assertEqual(
            (done.returncode, done.stdout, done.stderr),
            (3, "", "python-env: the package index cannot be reached\n"),
        )

    def test_a_folder_with_something_else_is_left_alone(self) -> None:
        (self.root / "env").mkdir()
        (self.root / "env/thesis").write_text("mine", encoding="utf-8")
        done = self.make()
        self.assertEqual(done.returncode, 2)
        self.assertRegex(done.stderr, r"\Apython-env: [^\n]*env is not empty[^\n]*\n\Z")
        self.assertEqual((self.root / "env/thesis").read_text(encoding="utf-8"), "mine")


if __name__ == "__main__":
    unittest.main(verbosity=2)
