#!/usr/bin/env python3
"""How much faster is a step of torch with penstock than with DeepSpeed ZeRO-3, all on the drive?

    bench/peers/deepspeed_step_ratio.py WORK [--search] [--rows 8] [--length 512] [--layers 12]
        [--dtype fp32|bf16] [--pairs 7] [--steps 2] [--settings FILE] [--set KEY=VALUE]...
        [--host-memory SIZE] [--python PYTHON] ...

GPT-2 with 124 million parameters, as transformers makes it (--layers, --width and --vocabulary make
it smaller), and one batch, trained by DeepSpeed with parameters and optimizer states on nvme, on
its CPU accelerator, and by penstock.initialize with the same configuration. Each is in a process of
its own, with the same threads, and has its files in WORK, which lies on the drive to measure. First
the losses of 5 steps of both are compared; a training whose losses differ, are not finite or do not
fall is not measured. Then they take turns: pairs of bursts, of one step and --steps more that
count. Prints the seconds of every pair, the bytes that a step had the drive read and write, and the
ratio; then the peak of each process's memory, what was locked of it, and the median, least and
largest ratio.

--search first tries settings of DeepSpeed, one after the other (deepspeed_settings.py), prints
them all, and writes the best to WORK/settings-*.json; --settings reads such a file, and --set keeps
one key as it says. penstock gets the same settings, keeps nothing in host memory that belongs on
the drive (tier_split off), and has --host-memory: three times the fp32 gradients, and at least
192 MiB, unless given. DeepSpeed pins what its settings need. OpenMP's threads wait without
spinning, which shortens the steps of both.

WORK also has a virtual environment, made on the first run (see adam_ratio.py; --python takes
another one), and what DeepSpeed compiles (unless TORCH_EXTENSIONS_DIR says where). penstock is the
repository's package and build/release's library, unless PENSTOCK_LIBRARY and PYTHONPATH say
otherwise. Standard library only.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import pathlib
import re
import select
import shutil
import signal
import statistics
import subprocess
from collections.abc import Iterator
from typing import Any

from adam_ratio import environment
from deepspeed_settings import Settings, base, put, search

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
CONTENDER = HERE / "deepspeed_step_contender.py"
POSITIONS = 1024
LOSS_STEPS = 5
# Greatest relative difference of the two losses. bf16: both round the same sums, in other orders.
TOLERANCE = {"fp32": 1e-4, "bf16": 1e-2}
BUILD = """
from deepspeed.accelerator import get_accelerator
for name in ("AsyncIOBuilder", "CPUAdamBuilder", "ShareMemCommBuilder"):
    get_accelerator().create_op_builder(name).load()
"""
ERROR = "deepspeed_step_ratio: error: "


class FailedError(Exception):
    """A contender ended, or did not answer in time."""


def cause(log: pathlib.Path) -> str:
    """Returns the lines that a contender ended with, as far as they say why."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    errors = [line for line in lines if re.search(r"Error|[Ff]ailed|[Aa]ssert", line)]
    return " | ".join((errors or lines)[-2:]) or "it wrote nothing"


class Contender:
    """A training in a process of its own, which does a burst of steps on demand."""

    def __init__(self, arguments: argparse.Namespace, name: str, settings: Settings) -> None:
        self.name = name
        self.timeout = arguments.timeout
        self.folder = pathlib.Path(arguments.work) / f"states-{name}"
        self.log = pathlib.Path(arguments.work) / f"{name}.log"
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                [arguments.python, str(CONTENDER), name],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=variables(arguments),
                start_new_session=True,
            )
        self._job = job(arguments, name, self.folder, settings)

    def begin(self) -> float:
        """Returns the seconds until the training could begin."""
        return float(self._ask(json.dumps(self._job))["start"])

    def _ask(self, line: str) -> dict[str, Any]:
        assert self.process.stdin is not None and self.process.stdout is not None
        try:
            self.process.stdin.write(line.encode() + b"\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # the missing answer says so
        if not select.select([self.process.stdout], [], [], self.timeout)[0]:
            raise FailedError(f"no answer in {self.timeout} s; its last lines: {cause(self.log)}")
        answer = self.process.stdout.readline()
        if not answer:
            raise FailedError(f"ended with {self.process.wait()}: {cause(self.log)}")
        found: dict[str, Any] = json.loads(answer)
        return found

    def burst(self, steps: int) -> dict[str, Any]:
        return self._ask(str(steps))

    def end(self) -> None:
        """Ends the process and removes its files."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.communicate()
        shutil.rmtree(self.folder, ignore_errors=True)


def variables(arguments: argparse.Namespace) -> dict[str, str]:
    """Returns the environment of both contenders."""
    ours = {
        "PENSTOCK_LIBRARY": str(ROOT / "build/release/front/libpenstock.so"),
        "PYTHONPATH": str(ROOT / "python"),
        "OMP_WAIT_POLICY": "passive",
        "TORCH_EXTENSIONS_DIR": os.path.join(arguments.work, "extensions"),
        **os.environ,
    }
    threads = str(arguments.threads)
    path = os.path.dirname(arguments.python) + os.pathsep + os.environ["PATH"]
    return {
        **ours,
        "DS_ACCELERATOR": "cpu",
        "OMP_NUM_THREADS": threads,
        "PATH": path,  # ninja
        "TOKENIZERS_PARALLELISM": "false",
    }


def build_operators(arguments: argparse.Namespace) -> None:
    """Has DeepSpeed compile what it compiles at its first use, before anything has a time limit."""
    for lock in pathlib.Path(arguments.work).glob("extensions/*/lock"):
        lock.unlink()  # of a compilation that was killed: torch waits for its end for ever
    print("loading DeepSpeed's operators; the first time compiles them", flush=True)
    log = pathlib.Path(arguments.work) / "operators.log"
    with open(log, "wb") as file:
        command = [arguments.python, "-c", BUILD]
        ended = subprocess.run(command, env=variables(arguments), stdout=file, stderr=file)
    if ended.returncode != 0:
        raise SystemExit(f"{ERROR}DeepSpeed's operators were not built: {cause(log)}; see {log}")


def parameters_of(arguments: argparse.Namespace) -> int:
    width = arguments.width
    outside = (arguments.vocabulary + POSITIONS + 2) * width
    return int(outside + arguments.layers * (12 * width * width + 13 * width))


def job(
    arguments: argparse.Namespace, name: str, folder: pathlib.Path, settings: Settings
) -> dict[str, Any]:
    """Returns what a contender is told."""
    nvme = {"device": "nvme", "nvme_path": str(folder)}
    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": arguments.rows,
        "gradient_accumulation_steps": 1,
        "gradient_clipping": 0.0,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "weight_decay": 0.01}},
        "zero_optimization": {
            "stage": 3,
            "offload_param": dict(nvme),
            "offload_optimizer": dict(nvme),
        },
    }
    if arguments.dtype == "bf16":
        config["bf16"] = {"enabled": True}
    put(config, settings)
    if name == "penstock":
        config["penstock"] = {"tier_split": False, "host_memory": arguments.host_memory}
    keys = ("layers", "width", "vocabulary", "dtype", "rows", "length", "threads")
    return {**{key: getattr(arguments, key) for key in keys}, "config": config}


def falls(losses: list[float]) -> bool:
    return all(math.isfinite(loss) for loss in losses) and losses[-1] < losses[0]


@contextlib.contextmanager
def started(arguments: argparse.Namespace, name: str, settings: Settings) -> Iterator[Contender]:
    contender = Contender(arguments, name, settings)
    try:
        contender.begin()
        yield contender
    finally:
        contender.end()


def changed(settings: Settings, than: Settings) -> str:
    pairs = [
        f"{key.split('.', 1)[1]} {settings[key]}"
        for key in settings
        if settings[key] != than.get(key)
    ]
    return ", ".join(pairs) or "the defaults"


def search_best(arguments: argparse.Namespace, start: Settings, fixed: Settings) -> Settings:
    """Tries settings of DeepSpeed, prints each, and returns and keeps the best."""

    def measure(settings: Settings) -> float:
        try:
            with started(arguments, "deepspeed", settings) as contender:
                found = contender.burst(arguments.steps)
        except FailedError as error:
            print(f"  {changed(settings, start)}: {error}", flush=True)
            return math.inf
        if not falls(found["losses"]):
            print(f"  {changed(settings, start)}: losses {found['losses']}", flush=True)
            return math.inf
        print(f"  {changed(settings, start)}: {figures(found)}", flush=True)
        return float(found["seconds"])

    print("search, DeepSpeed alone:", flush=True)
    best = search(start, fixed, measure)
    case = f"{arguments.dtype}-{arguments.rows}x{arguments.length}-{arguments.layers}"
    path = pathlib.Path(arguments.work) / f"settings-{case}.json"
    path.write_text(json.dumps(best, indent=1) + "\n")
    print(f"best: {changed(best, start)}; all in {path}", flush=True)
    return best


def figures(found: dict[str, Any]) -> str:
    read, written = found["read"] / 1e6, found["written"] / 1e6
    return f"{found['seconds']:.3f} s (read {read:.0f} MB, written {written:.0f} MB)"


def compare_losses(found: dict[str, dict[str, Any]], dtype: str) -> None:
    """Prints the losses of both, and ends the program if they are not those of one training."""
    ours, theirs = (found[name]["losses"] for name in ("penstock", "deepspeed"))
    apart = max(abs(a - b) / abs(b) for a, b in zip(ours, theirs))
    for name, losses in (("DeepSpeed", theirs), ("penstock", ours)):
        print(f"losses of {name}: {' '.join(f'{loss:.7f}' for loss in losses)}")
        if not falls(losses):
            raise SystemExit(f"{ERROR}the losses of {name} do not fall; nothing was measured")
    print(f"largest relative difference {apart:.2e}, allowed {TOLERANCE[dtype]:.0e}", flush=True)
    if not apart <= TOLERANCE[dtype]:
        raise SystemExit(f"{ERROR}the losses differ; nothing was measured")


def compare(arguments: argparse.Namespace, settings: Settings) -> None:
    """Compares losses, then times bursts in turn, and prints all of it."""
    with contextlib.ExitStack() as stack:
        both = {
            name: stack.enter_context(started(arguments, name, settings))
            for name in ("deepspeed", "penstock")
        }
        found = {name: contender.burst(LOSS_STEPS - 1) for name, contender in both.items()}
        compare_losses(found, arguments.dtype)
        ratios = []
        for pair in range(arguments.pairs):
            order = list(both) if pair % 2 == 0 else list(reversed(both))
            found.update({name: both[name].burst(arguments.steps) for name in order})
            ratios.append(found["deepspeed"]["seconds"] / found["penstock"]["seconds"])
            print(
                f"pair {pair + 1}: DeepSpeed {figures(found['deepspeed'])}, "
                f"penstock {figures(found['penstock'])}, ratio {ratios[-1]:.3f}",
                flush=True,
            )
    for name, last in found.items():
        if not all(math.isfinite(loss) for loss in last["losses"]):
            raise SystemExit(f"{ERROR}the last losses of {name} are {last['losses']}")
        peak, locked = last["peak"] / 2**20, last["locked"] / 2**20
        print(f"{name}: peak {peak:.0f} MiB, of which locked {locked:.0f} MiB")
    print(
        f"{arguments.dtype}, {arguments.rows} x {arguments.length} tokens: "
        f"median ratio {statistics.median(ratios):.3f}, from {min(ratios):.3f} to "
        f"{max(ratios):.3f}, {arguments.pairs} pairs"
    )


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("work")
    parser.add_argument("--search", action="store_true")
    parser.add_argument("--settings", help="a file that --search wrote")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="fixed")
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--vocabulary", type=int, default=50257)
    parser.add_argument("--dtype", choices=sorted(TOLERANCE), default="fp32")
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--steps", type=int, default=2, help="steps of a burst that count")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--host-memory", help="of penstock")
    parser.add_argument("--python", help="with torch, transformers and deepspeed")
    parser.add_argument("--timeout", type=float, default=1800, help="seconds for an answer")
    return parser.parse_args()


def main() -> None:
    arguments = parse()
    arguments.work = os.path.abspath(arguments.work)
    os.makedirs(arguments.work, exist_ok=True)
    parameters = parameters_of(arguments)
    if arguments.python is None:
        arguments.python = environment(arguments.work)
    if arguments.host_memory is None:
        arguments.host_memory = f"{max(192, 12 * parameters >> 20)}MiB"
    fixed = {
        key: json.loads(value) for key, _, value in (one.partition("=") for one in arguments.fixed)
    }
    settings = base(max(arguments.vocabulary * arguments.width, 4 * arguments.width**2))
    start = {**settings, **fixed}
    if arguments.settings:
        start.update({**json.loads(pathlib.Path(arguments.settings).read_text()), **fixed})
    print(
        f"{parameters} parameters, {arguments.dtype}, {arguments.rows} x {arguments.length} tokens, "
        f"{arguments.threads} threads, {arguments.host_memory} of host memory for penstock",
        flush=True,
    )
    build_operators(arguments)
    best = search_best(arguments, start, fixed) if arguments.search else start
    print(f"settings: {json.dumps(best)}", flush=True)
    try:
        compare(arguments, best)
    except FailedError as error:
        raise SystemExit(f"{ERROR}{error}") from None


if __name__ == "__main__":
    main()
