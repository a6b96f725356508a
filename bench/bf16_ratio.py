#!/usr/bin/env python3
"""What does a step in bf16 take, of what it takes in fp32?

Trains the quickstart's model with 2048 tokens a step, all on the device, in bf16 and in fp32 in turn,
order alternating, and prints the CPU seconds (user and system) of a step, the ratio of every pair, and
their median. CPU seconds, as another program on the machine changes them less than the time on the
clock; those of a run's start are taken off by a run of one step beside each run.

    bench/bf16_ratio.py PENSTOCK WORK [PAIRS]

On a machine with bf16 instructions, ONEDNN_MAX_CPU_ISA=AVX2 in the environment keeps matrix products
from them (the loops over elements keep the best instructions that they have).

WORK: a folder for the runs. Standard library only.
"""
import os
import resource
import sys

from placement_ratio import step_seconds
from ratio import print_ratios

STEPS = 3


def cpu_seconds(work):
    """User and system seconds that the child processes of `work()` take."""
    def used():
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        return usage.ru_utime + usage.ru_stime
    before = used()
    work()
    return used() - before


def cpu_seconds_of_a_step(program, work, bf16):
    def run(steps):
        return cpu_seconds(lambda: step_seconds(program, work, "none", steps=steps, micro_batches=4,
                                                bf16=bf16))
    return (run(1 + STEPS) - run(1)) / STEPS


def main():
    if len(sys.argv) not in (3, 4):
        raise SystemExit(__doc__)
    program, work = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
    pairs = int(sys.argv[3]) if len(sys.argv) == 4 else 5
    os.makedirs(work, exist_ok=True)
    print_ratios(pairs, ("bf16", "fp32"), "s",
                 lambda name: cpu_seconds_of_a_step(program, work, name == "bf16"))


if __name__ == "__main__":
    main()
