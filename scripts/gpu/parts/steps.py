"""Steps of one GPT-2 by torch, penstock and DeepSpeed, each in a process of its own.

steps.py CONTENDER:KEY=VALUE,... ...     contenders: torch, level1, level2, deepspeed; keys: Job's

torch and transformers are imported once, and each contender is a fork (before CUDA is touched); it
has `seconds`, and prints results as they come. A crash or a hang loses only that contender.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
# A library that asks, as it is imported, whether there is a GPU is answered without CUDA.
os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")

import faulthandler
import gc
import importlib
import signal
import statistics
import sys
import time
import traceback

import package
from said import drive, out, say, seconds_left

package.load("transformers")

import contenders
import torch
from contenders import Job, Unsupported

_LEAST_S = 8.0  # with fewer left a contender does not begin


def memory() -> dict[str, int]:
    """MiB of host memory that this process has had at most, and holds locked."""
    found = {}
    with open("/proc/self/status") as file:
        for line in file:
            name, _, rest = line.partition(":")
            if name in ("VmHWM", "VmLck", "VmPin"):
                found[name] = int(rest.split()[0]) // 1024
    return found


def trace(job: Job, step) -> None:  # type: ignore[no-untyped-def]
    """One step under torch's profiler: a table, and a file for Perfetto."""
    kinds = [torch.profiler.ProfilerActivity.CPU]
    if job.device == "cuda":
        kinds.append(torch.profiler.ProfilerActivity.CUDA)
    with torch.profiler.profile(activities=kinds) as profile:
        step()
        job.wait()
    path = out() / f"trace-{job.kind}.json.gz"
    profile.export_chrome_trace(str(path))
    say(name=job.name(), trace=path.name)
    print(profile.key_averages().table(sort_by="self_device_time_total", row_limit=25), flush=True)


def run(job: Job) -> None:
    begun = time.perf_counter()
    training = contenders.CONTENDERS[job.kind](job)
    parameters = sum(p.numel() for p in training.model.parameters())
    job.wait()
    say(name=job.name(), start_s=round(time.perf_counter() - begun, 2))
    phases = training.phases() if training.phases else {}
    times, losses = [], []
    if job.device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    for number in range(job.steps):
        begun = time.perf_counter()
        loss = training.step()
        job.wait()
        times.append(round(time.perf_counter() - begun, 4))
        losses.append(round(float(loss.detach()), 5))
        say(name=job.name(), step=number, seconds=times[-1], loss=losses[-1])
    middle = statistics.median(times[2:] or times)
    peak = torch.cuda.max_memory_allocated() >> 20 if job.device == "cuda" else 0
    say(
        name=job.name(),
        kind=job.kind,
        home=job.home,
        done=True,
        seconds=middle,
        tokens_per_s=round(job.tokens() / middle),
        parameters=parameters,
        losses=losses,
        device_peak_mib=peak,
        **phases,
        **memory(),
    )
    if job.trace:
        trace(job, training.step)
    training.close()


def contend(job: Job) -> int:
    """What the fork does; returns its exit code."""
    refusals: tuple[type[Exception], ...] = (Unsupported,)
    if job.optional:
        import penstock

        refusals += (penstock.InvalidArgumentError, penstock.UnavailableError, TypeError)
    try:
        run(job)
        return 0
    except refusals as error:
        say(name=job.name(), unsupported=f"{type(error).__name__}: {error}"[:300])
        return 0
    except BaseException as error:
        traceback.print_exc(file=sys.stdout)
        say(name=job.name(), error=f"{type(error).__name__}: {error}"[:300])
        return 1


def in_a_fork(job: Job, seconds: float) -> bool:
    """Whether the contender came to its end in time."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.setpgid(0, 0)
            faulthandler.dump_traceback_later(max(1.0, seconds - 2), file=sys.stdout)
            code = contend(job)
            sys.stdout.flush()
        finally:
            os._exit(code)
    until = time.monotonic() + seconds
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            if os.WIFSIGNALED(status):
                # A dump of what a thread is doing may crash; it is made because time is over.
                late = time.monotonic() > until - 2
                over = f"took more than {seconds - 2:.0f} s" if late else ""
                say(name=job.name(), error=over or f"ended by signal {os.WTERMSIG(status)}")
            return status == 0
        if time.monotonic() > until:
            os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
            say(name=job.name(), error=f"took more than {seconds:.0f} s")
            return False
        time.sleep(0.02)


def main() -> int:
    jobs = [Job.of(text) for text in sys.argv[1:]]
    # Once, before the forks. Nothing here may touch CUDA, which does not survive a fork.
    importlib.import_module("transformers.models.gpt2.modeling_gpt2")
    gc.freeze()
    failed = False
    for job in jobs:
        if job.home == "nvme" and drive() is None:
            say(name=job.name(), missing="no folder has O_DIRECT")
            continue
        seconds = min(job.seconds, seconds_left())
        if seconds < min(_LEAST_S, job.seconds):
            say(name=job.name(), missing="no time is left")
            continue
        failed = not in_a_fork(job, seconds) or failed
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
