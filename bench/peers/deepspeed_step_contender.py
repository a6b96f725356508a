"""A training that does a burst of steps for each line on stdin. Started by deepspeed_step_ratio.py,
in the peers' environment.

    deepspeed_step_contender.py deepspeed|penstock

The first line is a job in JSON: layers, width, vocabulary, dtype, rows, length, threads, and config,
a DeepSpeed configuration with all paths. A line after it is the number of steps to time; one step
that is not timed comes first, so that what a step leaves to the next one counts in each. Answers
each line, the first one as well, with one line of JSON. Whatever else a contender writes goes to stderr.

deepspeed: deepspeed.initialize on DeepSpeed's CPU accelerator, in one process.
penstock: penstock.initialize; a commit ends a burst, which is not timed, so that no update runs
  while the other contender has its turn.
"""

from __future__ import annotations

import json
import os
import resource
import socket
import sys
import time
from collections.abc import Callable
from typing import Any, TextIO

import torch
import transformers

Step = Callable[[torch.Tensor], float]


def make_model(job: dict[str, Any]) -> torch.nn.Module:
    """Returns GPT-2 as transformers makes it, the same for every contender."""
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        n_layer=job["layers"],
        n_embd=job["width"],
        n_head=max(1, job["width"] // 64),
        vocab_size=job["vocabulary"],
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        use_cache=False,
        bos_token_id=0,
        eos_token_id=0,
    )
    model = transformers.GPT2LMHeadModel(config)
    return model.to(torch.bfloat16 if job["dtype"] == "bf16" else torch.float32)


def make_batch(job: dict[str, Any]) -> torch.Tensor:
    random = torch.Generator().manual_seed(1)
    shape = (job["rows"], job["length"])
    return torch.randint(0, job["vocabulary"], shape, generator=random)


def deepspeed_step(job: dict[str, Any]) -> tuple[Step, Callable[[], Any]]:
    """Returns a step of DeepSpeed, and what waits for what a step has left: nothing."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    os.environ.update(
        MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK="0", WORLD_SIZE="1", LOCAL_RANK="0"
    )
    import deepspeed

    model = make_model(job)
    # Where a CPU has no fp16, initialize() gives weights on nvme bf16 whatever they are (0.19.8,
    # Init._set_dtype); Init takes the type of the configuration.
    deepspeed.zero.Init(module=model, config_dict_or_path=job["config"])
    engine, _, _, _ = deepspeed.initialize(model=model, config=job["config"])

    def step(batch: torch.Tensor) -> float:
        loss = engine(input_ids=batch, labels=batch).loss
        engine.backward(loss)
        engine.step()
        return float(loss.detach())

    return step, lambda: None


def penstock_step(job: dict[str, Any]) -> tuple[Step, Callable[[], Any]]:
    """Returns a step of penstock, and what waits for the update that a step has left: a commit."""
    import penstock

    model, optimizer = penstock.initialize(make_model(job), config=job["config"])

    def step(batch: torch.Tensor) -> float:
        loss = model(input_ids=batch, labels=batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return float(loss.detach())

    return step, optimizer.commit


def transferred() -> tuple[int, int]:
    """Returns the bytes that this process had the drive read and write."""
    with open("/proc/self/io", encoding="ascii") as file:
        fields = dict(line.split(": ") for line in file.read().splitlines())
    return int(fields["read_bytes"]), int(fields["write_bytes"])


def locked() -> int:
    """Returns the bytes that this process has locked in memory."""
    with open("/proc/self/status", encoding="ascii", errors="replace") as file:
        line = next(line for line in file if line.startswith("VmLck:"))
    return int(line.split()[1]) * 1024


def burst(step: Step, batch: torch.Tensor, steps: int) -> dict[str, Any]:
    """Returns what the last ``steps`` of one more took: each one's mean."""
    losses = [step(batch)]
    read, written = transferred()
    begin = time.perf_counter()
    losses += [step(batch) for _ in range(steps)]
    seconds = time.perf_counter() - begin
    read_then, written_then = transferred()
    return {
        "seconds": seconds / steps,
        "read": (read_then - read) // steps,
        "written": (written_then - written) // steps,
        "losses": losses,
        "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "locked": locked(),
    }


def serve(contender: str, answers: TextIO) -> None:
    job = json.loads(sys.stdin.readline())
    torch.set_num_threads(job["threads"])
    make = deepspeed_step if contender == "deepspeed" else penstock_step
    begin = time.perf_counter()
    step, drain = make(job)
    batch = make_batch(job)
    print(json.dumps({"start": time.perf_counter() - begin}), file=answers, flush=True)
    for line in sys.stdin:
        found = burst(step, batch, int(line))
        drain()
        print(json.dumps(found), file=answers, flush=True)


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # DeepSpeed and its libraries write to stdout
    serve(sys.argv[1], answers)


if __name__ == "__main__":
    main()
