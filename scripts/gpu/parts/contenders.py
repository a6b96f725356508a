"""The contenders that train a GPT-2 from torch: torch, both levels of penstock, and DeepSpeed.

A contender is a function that takes a Job and returns a `Training`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import os
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import ds_ops
import models
import torch
from said import drive, scratch


class Unsupported(Exception):
    """This build, or this machine, does not have what a job asks for."""


@dataclasses.dataclass
class Job:
    """A contender and its model. `home`: none, cpu or nvme; `larger`: weights by memory of the
    device that torch may take (0: all of it); `optional`: a refusal is no failure; `seconds`: it is
    ended after that."""

    kind: str = ""
    layers: int = 2
    width: int = 64
    heads: int = 2
    rows: int = 2
    length: int = 16
    vocabulary: int = 50304
    accumulate: int = 1
    steps: int = 6
    home: str = "cpu"
    device: str = "cuda"
    larger: float = 0.0
    clip: float = 1.0
    optional: int = 0
    trace: int = 0
    seconds: float = 60.0

    @staticmethod
    def of(text: str) -> Job:
        """Reads KIND:KEY=VALUE,...; the last value of a key counts.

        Raises:
            SystemExit: a key is none of a job's, or the contender is unknown.
        """
        kind, _, rest = text.partition(":")
        if kind not in CONTENDERS:
            raise SystemExit(f"error: there is no contender {kind}")
        job = Job(kind)
        for pair in filter(None, rest.split(",")):
            key, _, value = pair.partition("=")
            if not hasattr(job, key):
                raise SystemExit(f"error: {pair}: there is no key {key}")
            setattr(job, key, type(getattr(job, key))(value))
        return job

    def name(self) -> str:
        extra = "" if self.accumulate == 1 else f", {self.accumulate} micro-batches"
        return f"{self.kind}{'' if self.kind == 'torch' else ', ' + self.home}{extra}"

    def tokens(self) -> int:
        return self.rows * self.length * self.accumulate

    def wait(self) -> None:
        """Until the device has done what it was told."""
        if self.device == "cuda":
            torch.cuda.synchronize()


@dataclasses.dataclass
class Training:
    """`step` makes one step and returns its loss; `close` ends the training."""

    model: Any
    step: Callable[[], torch.Tensor]
    close: Callable[[], Any] = lambda: None
    phases: Callable[[], dict[str, float]] | None = None  # seconds of forward and backward


@contextlib.contextmanager
def _bfloat16() -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def make_model(job: Job, device: str) -> Any:
    """GPT-2 in bf16, with checkpointing, made on a device."""
    with torch.device(device), _bfloat16():
        model = models.gpt2(job.layers, job.width, job.heads, job.length, job.vocabulary, "sdpa")
    model.gradient_checkpointing_enable({"use_reentrant": False})
    return model.train()


def make_batches(job: Job) -> list[torch.Tensor]:
    random = torch.Generator().manual_seed(1)
    shape = (job.accumulate, job.rows, job.length)
    return list(torch.randint(0, job.vocabulary, shape, generator=random).to(job.device))


def settings(job: Job) -> dict[str, Any]:
    """The configuration that DeepSpeed and level 2 take."""
    home: dict[str, Any] = {"device": job.home}
    if job.home == "nvme":
        home["nvme_path"] = str(drive())
    zero: dict[str, Any] = {"stage": 3}
    if job.home != "none":
        zero.update(offload_param=home, offload_optimizer=home)
    return {
        "train_micro_batch_size_per_gpu": job.rows,
        "gradient_accumulation_steps": job.accumulate,
        "gradient_clipping": job.clip,
        "bf16": {"enabled": True},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "weight_decay": 0.01}},
        "zero_optimization": zero,
    }


def _loop(job: Job, model: Any, optimizer: Any, update: Callable[[], Any]) -> Callable[[], Any]:
    """A step of a plain loop."""
    data = make_batches(job)

    def step() -> torch.Tensor:
        for batch in data:
            loss = model(input_ids=batch, labels=batch).loss
            (loss / job.accumulate).backward()
        update()
        optimizer.zero_grad()
        return loss

    return step


def torch_in_memory(job: Job) -> Training:
    model = make_model(job, job.device)
    fused = job.device == "cuda"
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.01, fused=fused)

    def update() -> None:
        torch.nn.utils.clip_grad_norm_(model.parameters(), job.clip)
        optimizer.step()

    def phases() -> dict[str, float]:
        batch = make_batches(job)[0]
        found = {"forward_s": 1e9, "backward_s": 1e9}
        for _ in range(3):
            begun = time.perf_counter()
            loss = model(input_ids=batch, labels=batch).loss
            job.wait()
            middle = time.perf_counter()
            loss.backward()
            job.wait()
            found["forward_s"] = min(found["forward_s"], middle - begun)
            found["backward_s"] = min(found["backward_s"], time.perf_counter() - middle)
            optimizer.zero_grad()
        return found

    return Training(model, _loop(job, model, optimizer, update), phases=phases)


def level1(job: Job) -> Training:
    import penstock

    model = make_model(job, job.device)
    where: dict[str, Any] = {"run": scratch() / f"level1-{os.getpid()}"}
    config: dict[str, Any] = {"penstock": {"tier_split": False}}
    if job.home == "nvme":
        where["nvme_path"] = str(drive())
    if job.home == "none":
        where["home"] = "device"
    optimizer = penstock.AdamW(
        model.parameters(),
        lr=1e-4,
        weight_decay=0.01,
        model=model,
        max_norm=job.clip,
        durable=False,
        config=config,
        **where,
    )
    return Training(model, _loop(job, model, optimizer, optimizer.step), optimizer.close)


def _limit_device(job: Job) -> None:
    """Leaves torch so much of the device that the weights are `larger` times as large."""
    if not job.larger or job.device != "cuda":
        return
    with torch.device("meta"):
        weights = sum(
            p.nbytes
            for p in models.gpt2(
                job.layers, job.width, job.heads, job.length, job.vocabulary, "sdpa"
            )
            .to(torch.bfloat16)
            .parameters()
        )
    whole = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(weights / job.larger / whole)


def level2(job: Job) -> Training:
    import penstock

    config = settings(job)
    config["penstock"] = {"durable": False, "tier_split": False}
    options: dict[str, Any] = {"run": scratch() / f"level2-{os.getpid()}"}
    _limit_device(job)
    if job.larger:
        if "device" in inspect.signature(penstock.initialize).parameters:
            options["device"] = job.device
        elif job.device != "cpu":
            raise Unsupported("penstock.initialize has no device=")
        with penstock.init():
            model = make_model(job, "cpu")
        options["weights"] = "random"
    else:
        model = make_model(job, job.device)
    model, optimizer = penstock.initialize(model, config, **options)
    return Training(model, _loop(job, model, optimizer, optimizer.step), optimizer.close)


def _deepspeed_config(job: Job, largest: int) -> dict[str, Any]:
    config = settings(job)
    zero = config["zero_optimization"]
    zero.update(overlap_comm=True, contiguous_gradients=True)
    for key in ("offload_param", "offload_optimizer"):
        if key in zero:
            zero[key] = dict(zero[key], pin_memory=True)
    if job.home == "nvme":
        # A buffer for each parameter that is large enough for the drive, and for those in use.
        size = -(-largest // 65536) * 65536
        zero["offload_param"].update(
            buffer_count=4 * job.layers + 8, buffer_size=size, max_in_cpu=0
        )
        zero["offload_optimizer"].update(buffer_count=5, pipeline_read=True, pipeline_write=True)
        config["aio"] = {
            "block_size": 1 << 20,
            "queue_depth": 16,
            "intra_op_parallelism": 4,
            "single_submit": False,
            "overlap_events": True,
        }
    return config


def deepspeed(job: Job) -> Training:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK="0", WORLD_SIZE="1")
    os.environ["LOCAL_RANK"] = "0"
    ds_ops.use()
    try:
        import deepspeed as package
    except ImportError as error:
        raise Unsupported(f"DeepSpeed: {error}") from error
    for name in ("CPUAdamBuilder", *(["AsyncIOBuilder"] if job.home == "nvme" else [])):
        if not ds_ops.built(name):  # it would be compiled in the time of this contender
            raise Unsupported(f"DeepSpeed: {name} was not compiled (part ds-ops)")
    model = make_model(job, job.device)
    config = _deepspeed_config(job, job.vocabulary * job.width)
    engine, *_ = package.initialize(model=model, config=config)
    data = make_batches(job)

    def step() -> torch.Tensor:
        for batch in data:
            loss = engine(input_ids=batch, labels=batch).loss
            engine.backward(loss)
            engine.step()
        return loss

    return Training(model, step)


CONTENDERS: dict[str, Callable[[Job], Training]] = {
    "torch": torch_in_memory,
    "level1": level1,
    "level2": level2,
    "deepspeed": deepspeed,
}
