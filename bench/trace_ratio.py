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

from placement_ratio import STEPS, step_seconds


def main():
    if len(sys.argv) not in (3, 4):
        raise SystemExit(__doc__)
    program, work = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
    pairs = int(sys.argv[3]) if len(sys.argv) == 4 else 9
    os.makedirs(work, exist_ok=True)
    ratios = []
    for pair in range(pairs):
        step = {trace: statistics.median(step_seconds(program, work, "nvme", trace=trace)[1:-1])
                for trace in ((True, False) if pair % 2 == 0 else (False, True))}
        ratios.append(step[True] / step[False])
        print(f"pair {pair + 1}: with {step[True]:.3f} s, without {step[False]:.3f} s, "
              f"ratio {ratios[-1]:.3f}", flush=True)
    print(f"median ratio {statistics.median(ratios):.3f}, "
          f"from {min(ratios):.3f} to {max(ratios):.3f}, {pairs} pairs of {STEPS} steps")


if __name__ == "__main__":
    main()
