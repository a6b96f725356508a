#!/usr/bin/env python3
"""Does a step cost what it did in another commit?

Trains with both builds in turn, order alternating, everything on nvme, and prints the CPU seconds (user
and system) of each, the ratio of every pair, new to old, and their median. CPU seconds, as another
program on the machine changes them less than the time on the clock.

    bench/step_cost_ratio.py train|optimizer|module OLD NEW WORK [PAIRS]

train: `penstock train` with the quickstart's model in bf16, whole processes of 3 steps of 512 tokens.
optimizer, module: the package's levels, with a GPT-2 of 11 million parameters of transformers in fp32
on one thread of torch; bursts of 3 steps of 128 tokens, in processes that are started anew after every
11 pairs. Nothing is committed but at the end of a run: a commit has a cost of its own. OLD and NEW are
trees with build/release; PAIRS is 41 if left out.
WORK: a folder on the drive to measure. Caches: warm. The package's levels need torch and transformers.
"""
import os
import subprocess
import sys
import tempfile
import time

from bf16_ratio import cpu_seconds
from placement_ratio import config, step_seconds
from ratio import print_ratios

STEPS, TOKENS, PAIRS_OF_A_PROCESS = 3, 128, 11
# torch's buffers stay in the heap: else a process maps some of them anew in each step, by chance up
# to 2000 pages more than the other.
KEEPS_ITS_HEAP = {"MALLOC_MMAP_THRESHOLD_": str(1 << 30), "MALLOC_TRIM_THRESHOLD_": str(1 << 34)}
BUILT = {"train": "train/penstock", "optimizer": "front/libpenstock.so", "module": "front/libpenstock.so"}


def serve(level, folder):
    """In a process of its own: for each line of stdin the CPU seconds of a burst, with what the updates
    of the one before still took after it. A first burst is not counted."""
    import penstock  # pylint: disable=import-outside-toplevel
    import torch
    import transformers

    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(
        n_layer=6, n_embd=384, n_head=6, n_positions=TOKENS, vocab_size=512, bos_token_id=0,
        eos_token_id=0, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False))
    settings = config("nvme", folder, micro_batches=1, bf16=False)
    if level == "optimizer":
        optimizer = penstock.AdamW(model.parameters(), lr=3e-4, weight_decay=0.1, nvme_path=folder,
                                   model=model, config={"penstock": {"tier_split": False}})
    else:
        model, optimizer = penstock.initialize(model, settings, run=os.path.join(folder, "run"))
    batch = torch.randint(0, 512, (1, TOKENS))

    def burst():
        for _ in range(STEPS):
            model(input_ids=batch, labels=batch).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        return time.process_time()

    last = burst()
    print("ready", flush=True)
    for _ in sys.stdin:
        now = burst()
        print(now - last, flush=True)
        last = now
    optimizer.close()


class Levels:
    """One process for each tree, started anew after some bursts."""

    def __init__(self, level, trees, work):
        self.level, self.trees, self.work = level, trees, work
        self.processes = {}
        self.bursts = {name: 0 for name in trees}

    def start(self, name):
        tree = self.trees[name]
        environment = {**os.environ, **KEEPS_ITS_HEAP, "OMP_WAIT_POLICY": "passive",
                       "PYTHONPATH": os.path.join(tree, "python"),
                       "PENSTOCK_LIBRARY": os.path.join(tree, "build/release", BUILT[self.level])}
        folder = tempfile.mkdtemp(dir=self.work)
        process = subprocess.Popen([sys.executable, os.path.abspath(__file__), "--serve", self.level, folder],
                                   env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert process.stdout.readline() == "ready\n"
        return process

    def seconds(self, name):
        if self.bursts[name] % PAIRS_OF_A_PROCESS == 0:
            self.stop(name)
            self.processes[name] = self.start(name)
        self.bursts[name] += 1
        process = self.processes[name]
        process.stdin.write("\n")
        process.stdin.flush()
        return float(process.stdout.readline())

    def stop(self, name):
        process = self.processes.pop(name, None)
        if process is not None:
            process.stdin.close()
            process.wait()


def main():
    if len(sys.argv) == 4 and sys.argv[1] == "--serve":
        serve(*sys.argv[2:])
        return
    if len(sys.argv) not in (5, 6) or sys.argv[1] not in BUILT:
        raise SystemExit(__doc__)
    what, old, new, work = sys.argv[1], *map(os.path.abspath, sys.argv[2:5])
    pairs = int(sys.argv[5]) if len(sys.argv) == 6 else 41
    trees = {"new": new, "old": old}
    with tempfile.TemporaryDirectory(dir=work) as folder:
        if what == "train":
            built = {name: os.path.join(tree, "build/release", BUILT[what]) for name, tree in trees.items()}
            print_ratios(pairs, ("new", "old"), "s", lambda name: cpu_seconds(
                lambda: step_seconds(built[name], os.path.join(folder, name), "nvme", steps=STEPS,
                                     micro_batches=1)))
            return
        levels = Levels(what, trees, folder)
        try:
            print_ratios(pairs, ("new", "old"), "s", levels.seconds)
        finally:
            for name in trees:
                levels.stop(name)


if __name__ == "__main__":
    main()
