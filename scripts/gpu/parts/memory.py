"""How fast is host memory, and the update of Adam on one to many threads?

memory.py ELEMENTS THREADS...

The copy measures the bandwidth; an update reads and writes 26 bytes an element (master, moments and
gradient in bf16 with a split master), so 26 N over the copy's rate is its floor.
"""

from __future__ import annotations

import os
import subprocess
import sys

from said import KIT, say, seconds_left

_ROUNDS = 4
_BYTES = {"copy": 26, "split": 26}  # of an element, read and written


def seconds_of(kind: str, elements: int, threads: int) -> float:
    """The fastest of some rounds after the first one.

    Raises:
        subprocess.TimeoutExpired: no time is left.
    """
    command = [str(KIT / "adam_run"), kind, str(elements), str(threads)]
    done = subprocess.run(
        command,
        input="\n" * _ROUNDS,
        capture_output=True,
        text=True,
        check=False,
        timeout=max(0.1, seconds_left()),
    )
    if done.returncode != 0:
        raise SystemExit(f"error: {' '.join(command)}: {done.stderr.strip()}")
    return min(float(line.split()[0]) for line in done.stdout.splitlines()[1:])


def main() -> int:
    elements, *numbers = map(int, sys.argv[1:])
    cores = len(os.sched_getaffinity(0))
    # The most threads first: this is what the floor is computed from.
    for threads in sorted({number for number in numbers if number <= cores}, reverse=True):
        for kind, name in (("copy", "copy"), ("split", "update")):
            try:
                seconds = seconds_of(kind, elements, threads)
            except subprocess.TimeoutExpired:
                say(name=name, threads=threads, missing="no time is left")
                continue
            rate = elements * _BYTES[kind] / seconds / 1e9
            say(name=name, threads=threads, seconds=seconds, gbps=round(rate, 2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
