#!/usr/bin/env python3
"""How near does `penstock inspect` come to what the drive can read?

Runs inspect of a run and bench/aio_run (io_uring, 1 MiB, queue depth 32, O_DIRECT) over as many bytes
of the same state file in turn, order alternating, and prints the speed of each, the ratio of every
pair, and their median. Inspect is timed as a user would: the whole process.

    bench/inspect_ratio.py PENSTOCK AIO_RUN RUN [PAIRS]

RUN: a run whose state is one file. Standard library only.
"""
import json
import os
import re
import subprocess
import sys
import time

from ratio import print_ratios

BLOCK = 1 << 20


def inspect(program, run):
    """GB/s, and how many GB."""
    start = time.monotonic()
    text = subprocess.run([program, "inspect", run], check=True, capture_output=True, text=True).stdout
    seconds = time.monotonic() - start
    amount, unit = re.search(r"(?m)^read +([\d.]+) ([KMG]iB) at", text).groups()
    size = float(amount) * 1024 ** ("KMG".index(unit[0]) + 1) / 1e9
    return size / seconds, size


def read_file(program, file, size):
    blocks = max(int(size * 1e9) // BLOCK, 1)
    output = subprocess.run([program, "--file", file, "--operation", "read", "--engine", "io_uring",
                             "--size", str(blocks * BLOCK), "--block-size", str(BLOCK),
                             "--queue-depth", "32"], check=True, capture_output=True, text=True).stdout
    return json.loads(output)["gbps"]


def main():
    if len(sys.argv) not in (4, 5):
        raise SystemExit(__doc__)
    program, reader, run = (os.path.abspath(path) for path in sys.argv[1:4])
    pairs = int(sys.argv[4]) if len(sys.argv) == 5 else 9
    with open(os.path.join(run, "run.json"), encoding="utf-8") as file:
        (state,) = (os.path.join(run, path) for path in json.load(file)["state_paths"])
    _, size = inspect(program, run)
    print(f"{size:.2f} GB")
    print_ratios(pairs, ("inspect", "drive"), "GB/s",
                 lambda name: (inspect(program, run)[0] if name == "inspect"
                               else read_file(reader, state, size)))


if __name__ == "__main__":
    main()
