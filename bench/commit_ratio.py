#!/usr/bin/env python3
"""What does a commit add to a step when everything is on nvme?

Trains the quickstart's model with 2560 tokens a step and commits after every fourth step. In each
cycle, what the step that commits and the one after it take beyond the two others is the commit's cost
(a commit ends the update that would have run beside the next step, which is shorter then). Prints the
median over the cycles, as a share of a step, and from where to where half of them range.

    bench/commit_ratio.py PENSTOCK WORK [CYCLES]

WORK: a folder on the drive to measure. Standard library only.
"""
import os
import statistics
import sys

from placement_ratio import step_seconds

CYCLE = 4


def main():
    if len(sys.argv) not in (3, 4):
        raise SystemExit(__doc__)
    program, work = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
    cycles = int(sys.argv[3]) if len(sys.argv) == 4 else 15
    os.makedirs(work, exist_ok=True)
    # The first cycle warms up. The last row ends with the final commit; it is in no cycle.
    steps = step_seconds(program, work, "nvme", steps=CYCLE * (cycles + 1) + 2, micro_batches=5,
                         commit_every_steps=CYCLE)
    shares = []
    for cycle in range(1, cycles + 1):
        before, last, commit, after = steps[CYCLE * cycle + 1:][:CYCLE]
        shares.append((commit + after - before - last) / ((before + last) / 2))
    quarters = statistics.quantiles(shares, n=4)
    print(f"step {statistics.median(steps):.3f} s; a commit adds {100 * statistics.median(shares):.2f} % "
          f"of it (half of {cycles} cycles from {100 * quarters[0]:.2f} to {100 * quarters[2]:.2f} %)")


if __name__ == "__main__":
    main()
