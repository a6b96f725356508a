"""Installs DeepSpeed from the kit's wheels and compiles the operators that offloading needs.

What is installed and compiled stays in the folder of the day, for later parts (`environment`). The
linker needs names without a version, which Python's packages of CUDA do not have: a folder of links.
"""

from __future__ import annotations

import ctypes
import os
import pathlib
import shutil
import subprocess
import sys
import time

from said import KIT, leave_out, say, work

_OPERATORS = ("CPUAdamBuilder", "AsyncIOBuilder", "UtilsBuilder")
_BUILD = """
import sys
from deepspeed.accelerator import get_accelerator
get_accelerator().create_op_builder(sys.argv[1]).load(verbose=False)
"""
_LIBRARIES = ("cudart", "curand", "cublas")


def cuda_home() -> str:
    if "CUDA_HOME" in os.environ:
        return os.environ["CUDA_HOME"]
    compiler = shutil.which("nvcc")
    return str(pathlib.Path(compiler).parents[1]) if compiler else "/usr/local/cuda"


def environment() -> dict[str, str]:
    """Variables with which DeepSpeed finds what this part has made."""
    links = work() / "ds-lib"
    joined = [str(links), os.environ.get("LIBRARY_PATH", "")]
    return {
        "CPATH": ":".join(filter(None, [str(KIT / "aio"), os.environ.get("CPATH", "")])),
        "CUDA_HOME": cuda_home(),
        "DS_SKIP_CUDA_CHECK": "1",
        "LD_LIBRARY_PATH": ":".join([str(links), os.environ.get("LD_LIBRARY_PATH", "")]).rstrip(
            ":"
        ),
        "LIBRARY_PATH": ":".join(filter(None, joined)),
        "MAX_JOBS": "8",
        "PATH": ":".join([os.path.dirname(sys.executable), os.environ.get("PATH", "")]),  # ninja
        "TORCH_CUDA_ARCH_LIST": "",  # DeepSpeed asks the GPU; it cannot read an image's "9.0a"
        "TORCH_EXTENSIONS_DIR": str(work() / "ds-operators"),
    }


def use() -> None:
    """Has this process find them, too: sets the variables, and loads what is looked for by name."""
    os.environ.update(environment())
    libaio = work() / "ds-lib/libaio.so.1"
    if libaio.exists():
        ctypes.CDLL(str(libaio), mode=ctypes.RTLD_GLOBAL)


def built(name: str) -> bool:
    """Whether an operator was compiled on this day."""
    return (work() / "ds-operators" / f"{name}.built").exists()


def nvidia_folders() -> list[pathlib.Path]:
    """Where Python's packages of CUDA are, and CUDA's own folder."""
    import importlib.util

    found = importlib.util.find_spec("nvidia")
    packages = [pathlib.Path(p) for p in found.submodule_search_locations or []] if found else []
    return [pathlib.Path(cuda_home()) / "lib64", *packages]


def make_links() -> None:
    links = work() / "ds-lib"
    shutil.rmtree(links, ignore_errors=True)
    links.mkdir()
    for name in _LIBRARIES:
        files = (f for folder in nvidia_folders() for f in folder.rglob(f"lib{name}.so*"))
        file = next(files, None)
        if file is not None:
            (links / f"lib{name}.so").symlink_to(file)
    cache = subprocess.run(["ldconfig", "-p"], capture_output=True, text=True, check=False).stdout
    drivers = [line.split()[-1] for line in cache.splitlines() if "libcuda.so.1 " in line]
    driver = pathlib.Path(drivers[0] if drivers else "/usr/local/nvidia/lib64/libcuda.so.1")
    (links / "libcuda.so").symlink_to(driver)
    shutil.copy(KIT / "aio/libaio.so.1", links / "libaio.so.1")
    (links / "libaio.so").symlink_to("libaio.so.1")


def install() -> None:
    """Installs the wheels for the parts of this day alone.

    Raises:
        SystemExit: pip fails, with its last line.
    """
    words = ["--quiet", "--no-index", "--no-deps", "--no-compile", "--no-cache-dir", "--upgrade"]
    wheels = sorted(map(str, (KIT / "wheels").glob("*.whl")))
    command = [sys.executable, "-m", "pip", "install", *words, "--target", str(work() / "site")]
    done = subprocess.run([*command, *wheels], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or ["pip said nothing"]
        raise SystemExit(f"error: pip: {lines[-1]}")


def main() -> int:
    if not list((KIT / "wheels").glob("deepspeed-*.whl")):
        leave_out("the bundle has no wheels of DeepSpeed")
    install()
    make_links()
    operators = work() / "ds-operators"
    operators.mkdir(exist_ok=True)
    for old in (*operators.glob("*/lock"), *operators.glob("*.built")):
        old.unlink()  # a build that was ended leaves its lock, for which the next one would wait
    variables = {**os.environ, **environment()}
    begun = time.monotonic()
    building = {
        name: subprocess.Popen(
            [sys.executable, "-c", _BUILD, name],
            stdin=subprocess.DEVNULL,
            stdout=open(work() / "logs" / f"ds-ops-{name}", "wb"),
            stderr=subprocess.STDOUT,
            env=variables,
        )
        for name in _OPERATORS
    }
    failed = False
    while building:
        for name, process in list(building.items()):
            if process.poll() is None:
                continue
            del building[name]
            seconds = round(time.monotonic() - begun, 1)
            if process.returncode == 0:
                (operators / f"{name}.built").touch()
                say(name=name, built=True, seconds=seconds)
                continue
            failed = True
            text = (work() / "logs" / f"ds-ops-{name}").read_text(errors="replace")
            errors = [line for line in text.splitlines() if "rror" in line]
            say(name=name, error=(errors or [f"exit code {process.returncode}"])[-1][:300])
        time.sleep(0.1)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
