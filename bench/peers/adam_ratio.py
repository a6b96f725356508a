#!/usr/bin/env python3
"""How much faster is the fused update than what DeepSpeed and PyTorch run for the same result?

Updates the same number of elements with the same number of threads (1 and all) by penstock, with both kinds
of master, and by each peer in turn, order alternating, and prints the seconds of every pair, the ratio of
the peer's to penstock's, and their median. What a peer runs stands in adam_peer.py beside this file. Both
have huge pages. At the end of each comparison the weights of both must be the same.

    bench/peers/adam_ratio.py ADAM_RUN WORK [PAIRS [ELEMENTS]]

ADAM_RUN: build/release/bench/adam_run. WORK: a folder for the peers, build/peers for one: a virtual
environment is made there on the first run, from the package index that pip is set up with (about 6 GB, most
of it libraries of torch that are not used here), and DeepSpeed's CPU Adam is compiled there (needs a C++
compiler). ELEMENTS: 67108864 unless given; 36 bytes of memory for each. Standard library only.
"""
import os
import subprocess
import sys
import time

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from ratio import print_ratios  # noqa: E402

PACKAGES = ["torch==2.15.0", "deepspeed==0.19.8", "transformers==5.24.0", "numpy", "ninja", "setuptools", "wheel"]
PEER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "adam_peer.py")
WARM_STEPS = 2


def environment(work):
    """The Python of the peers' virtual environment, made where it is not there yet."""
    folder = os.path.join(work, "venv")
    python, done = os.path.join(folder, "bin", "python"), os.path.join(folder, "installed")
    wanted = "\n".join(PACKAGES)
    if not os.path.exists(done) or open(done, encoding="utf-8").read() != wanted:
        print(f"installing {' '.join(PACKAGES)} in {folder}", flush=True)
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *PACKAGES], check=True)
        with open(done, "w", encoding="utf-8") as file:
            file.write(wanted)
    return python


class Contender:
    """A program that does one update for each line that it is sent."""

    def __init__(self, command, **variables):
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                        env={**os.environ, **variables})
        self.weight = None
        for _ in range(WARM_STEPS):
            self.seconds()

    def seconds(self):
        time.sleep(0.05)  # what OpenMP's threads spin after the other's update
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline().split()
        if len(answer) != 2:
            raise SystemExit(f"adam_ratio: error: {' '.join(self.process.args)} ended without an answer; "
                             "what it wrote stands above")
        self.weight = float(answer[1])
        return float(answer[0])

    def end(self):
        self.process.stdin.close()
        self.process.wait()


def compare(contenders, pairs):
    names = tuple(contenders)
    print_ratios(pairs, names, "s", lambda name: contenders[name].seconds())
    weights = {name: contender.weight for name, contender in contenders.items()}
    for contender in contenders.values():
        contender.end()
    if len(set(weights.values())) != 1:
        raise SystemExit(f"adam_ratio: error: the weights differ after as many steps: {weights}")


def main():
    if len(sys.argv) not in (3, 4, 5):
        raise SystemExit(__doc__)
    program, work = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
    pairs = int(sys.argv[3]) if len(sys.argv) > 3 else 15
    elements = sys.argv[4] if len(sys.argv) > 4 else str(64 << 20)
    os.makedirs(work, exist_ok=True)
    python = environment(work)
    for threads in sorted({1, os.cpu_count()}):
        variables = {"OMP_NUM_THREADS": str(threads), "DS_ACCELERATOR": "cpu", "THP_MEM_ALLOC_ENABLE": "1",
                     "TORCH_EXTENSIONS_DIR": os.path.join(work, "extensions"),
                     "PATH": os.path.dirname(python) + os.pathsep + os.environ["PATH"]}
        for peer in ("deepspeed", "torch"):
            for master in ("whole", "split"):
                print(f"\n{peer} and penstock with a {master} master, {elements} elements, {threads} threads",
                      flush=True)
                compare({peer: Contender([python, PEER, peer, elements], **variables),
                         "penstock": Contender([program, master, elements, str(threads)])}, pairs)


if __name__ == "__main__":
    main()
