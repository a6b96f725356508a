#!/usr/bin/env python3
"""What does a trace cost?

Trains the quickstart's model with 4096 tokens a step, all on nvme, with and without --trace in turn,
order alternating, and prints the ratio of every pair's median steps, and their median.

    bench/trace_ratio.py PENSTOCK WORK [PAIRS]

WORK: a folder on the drive to measure. Standard library only.
"""
import os
import statistics
import sys

from placement_ratio import step_seconds
from ratio import print_ratios


def main():
    if len(sys.argv) not in (3, 4):
        raise SystemExit(__doc__)
    program, work = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
    pairs = int(sys.argv[3]) if len(sys.argv) == 4 else 9
    os.makedirs(work, exist_ok=True)
    print_ratios(pairs, ("with", "without"), "s",
                 lambda name: statistics.median(
                     step_seconds(program, work, "nvme", trace=name == "with")[1:-1]))


if __name__ == "__main__":
    main()
