#!/usr/bin/env python3
"""What does another program, or another number of threads, make of the speed of bench/state_moves?

Runs two commands in turn, order alternating. Each prints one number, in GB/s. Prints every pair, and
the median of the ratios of the first to the second.

    bench/state_moves_ratio.py "NEW copy FOLDER" "OLD copy FOLDER" [PAIRS]

Standard library only.
"""
import shlex
import subprocess
import sys

from ratio import print_ratios


def main():
    if len(sys.argv) not in (3, 4):
        raise SystemExit(__doc__)
    commands = {"first": shlex.split(sys.argv[1]), "second": shlex.split(sys.argv[2])}
    for name, command in commands.items():
        print(f"{name}: {shlex.join(command)}")
    print_ratios(int(sys.argv[3]) if len(sys.argv) == 4 else 7, tuple(commands), "GB/s",
                 lambda name: float(subprocess.run(commands[name], check=True, capture_output=True,
                                                   text=True).stdout))


if __name__ == "__main__":
    main()
