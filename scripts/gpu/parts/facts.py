"""Prints facts that identify the machine, the driver and the image."""

from __future__ import annotations

import concurrent.futures
import shutil
import subprocess
import sys

_COMMANDS = (
    "nvidia-smi",
    "nvidia-smi -q -d CLOCK,PERFORMANCE,POWER",
    "nvidia-smi topo -m",
    "uname -a",
    "lscpu",
    "cat /proc/meminfo",
    "df -hT",
    "lsblk -o NAME,ROTA,SCHED,SIZE,MODEL,LOG-SEC,MIN-IO,FSTYPE,MOUNTPOINT",
    "cat /sys/kernel/mm/transparent_hugepage/enabled",
    "cat /proc/sys/kernel/io_uring_disabled",
    "cat /proc/sys/fs/aio-max-nr",
    "ulimit -a",
    "nvcc --version",
    "g++ --version",
    "command -v ncu compute-sanitizer cuda-gdb cuobjdump ninja cmake",
    "cat /etc/os-release",
    "ldconfig -p",
    "cat /proc/mounts",
)
_TORCH = """
import sys, torch, transformers
print(sys.version, torch.__version__, torch.version.cuda, transformers.__version__)
print(torch.backends.cudnn.version(), torch.cuda.is_available() and torch.cuda.nccl.version())
print(torch.cuda.get_device_properties(0) if torch.cuda.is_available() else "torch sees no GPU")
"""


def said_by(command: str) -> str:
    try:
        done = subprocess.run(
            ["bash", "-c", command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=10,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return "(no answer within 10 s)"
    return done.stdout.decode(errors="replace").rstrip()


def main() -> None:
    commands = [*_COMMANDS, f"{sys.executable} -m pip list"]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        # The slowest first.
        torch = pool.submit(said_by, f"{sys.executable} -c '{_TORCH}'")
        for command, text in zip(commands, pool.map(said_by, commands)):
            print(f"==== {command}\n{text}", flush=True)
        print(f"==== torch\n{torch.result()}", flush=True)
    for program in ("nvidia-smi", "nvcc", "ncu", "compute-sanitizer", "bash", "tar"):
        if shutil.which(program) is None:
            print(f"not on the PATH: {program}")


if __name__ == "__main__":
    main()
