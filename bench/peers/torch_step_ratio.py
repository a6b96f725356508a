#!/usr/bin/env python3
"""How much longer does a step of torch take if its optimizer states, or its weights too, live on a
drive?

  bench/peers/torch_step_ratio.py [--level 1|2] [--pairs 21] [--rows 1] [--length 512] [--layers 12]
                                  [--io 0.67] [--drive simulated|slowed|real]
                                  [--dtype fp32|bf16] [--folder FOLDER]

GPT-2 with 124 million parameters, as transformers makes it, on the CPU with two threads; against
the same model in memory with torch.optim.AdamW(fused=True). Both are in one process, and take turns:
so many pairs of bursts, of three steps each. Of a burst the last two steps count, from the return
of one step() to that of another: in these an update runs under the next forward, as in a training.
The drive is one whose speed is set so that the bytes of a step take --io of the time that a step in
memory takes. A simulated one is memory, and processors copy its bytes; a slowed one is that of
FOLDER, which lies on a whole disk, slowed down by the control group "penstock-bench" of the blkio
controller, version 1 (needs root; the group stays); a real one is that of FOLDER as it is, whatever
--io says. Caches: warm. OpenMP's threads wait
without spinning, which shortens the steps of both. Prints each pair, and the median, least and
largest ratio.

Needs torch, transformers and penstock (PENSTOCK_LIBRARY and PYTHONPATH, or the wheel).
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import penstock  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402

# Of a parameter: its states, which are read and written once, and its weight, which level 2 reads
# twice more, in forward and backward.
BYTES = {"fp32": (12, 4), "bf16": (13, 2)}
GROUP = "/sys/fs/cgroup/blkio/penstock-bench"


def make_model(arguments: argparse.Namespace) -> torch.nn.Module:
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        n_layer=arguments.layers, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False
    )
    model = transformers.GPT2LMHeadModel(config)
    return model.to(torch.bfloat16 if arguments.dtype == "bf16" else torch.float32)


class Contender:
    """A model with its optimizer."""

    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.model = model
        self.optimizer = optimizer

    def step(self, batch: torch.Tensor) -> float:
        loss = self.model(input_ids=batch, labels=batch).loss
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return float(loss.detach())

    def burst(self, batch: torch.Tensor) -> float:
        """Returns the seconds of a step."""
        self.step(batch)
        begin = time.perf_counter()
        for _ in range(2):
            self.step(batch)
        seconds = (time.perf_counter() - begin) / 2
        commit = getattr(self.optimizer, "commit", None)
        if commit is not None:
            commit()  # waits for the update, which would run under the other's burst
        return seconds


def slow_down(folder: str, read: float, write: float) -> None:
    """Limits the speed at which this process uses the drive of a folder, in bytes a second."""
    device = os.stat(folder).st_dev
    os.makedirs(GROUP, exist_ok=True)
    for name, speed in (("read", read), ("write", write)):
        with open(f"{GROUP}/blkio.throttle.{name}_bps_device", "w") as file:
            file.write(f"{os.major(device)}:{os.minor(device)} {int(speed)}")
    with open(f"{GROUP}/cgroup.procs", "w") as file:
        file.write(str(os.getpid()))


def offloaded(arguments: argparse.Namespace, folder: str, gbps: float) -> Contender:
    nvme = {"device": "nvme", "nvme_path": folder}
    zero = {"stage": 3, "offload_optimizer": nvme}
    simulate = {"read_gbps": gbps, "write_gbps": gbps, "shared": True}
    config = {
        "gradient_clipping": 0,
        "zero_optimization": zero,
        "penstock": {
            "tier_split": False,
            "aio": {"simulate": simulate} if gbps else {},
        },
    }
    model = make_model(arguments)
    if arguments.level == 1:
        optimizer = penstock.AdamW(
            model.parameters(),
            lr=1e-4,
            weight_decay=0.01,
            nvme_path=folder,
            model=model,
            config=config,
        )
        return Contender(model, optimizer)
    zero["offload_param"] = nvme
    config["optimizer"] = {"type": "AdamW", "params": {"lr": 1e-4, "weight_decay": 0.01}}
    return Contender(*penstock.initialize(model, config))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--level", type=int, choices=(1, 2), default=1)
    parser.add_argument("--pairs", type=int, default=21)
    parser.add_argument("--rows", type=int, default=1)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--io", type=float, default=0.67)
    parser.add_argument("--drive", choices=("simulated", "slowed", "real"), default="simulated")
    parser.add_argument("--dtype", choices=sorted(BYTES), default="fp32")
    parser.add_argument("--folder")
    arguments = parser.parse_args()
    if not arguments.io > 0:
        parser.error("--io is a part of a step's time, above 0; --drive real is the drive as it is")
    torch.set_num_threads(2)
    batch = torch.randint(0, 50257, (arguments.rows, arguments.length))

    model = make_model(arguments)
    plain = Contender(model, torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True))
    alone = statistics.median(plain.burst(batch) for _ in range(3))
    parameters = sum(parameter.numel() for parameter in model.parameters())
    states, weight = BYTES[arguments.dtype]
    again = 2 * weight if arguments.level == 2 else 0
    a_second = parameters / (arguments.io * alone)
    gbps = 0.0
    speed = "as it is"
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        if arguments.drive == "simulated":
            gbps = (2 * states + again) * a_second / 1e9
            speed = f"{gbps:.2f} GB/s both ways"
        elif arguments.drive == "slowed":
            read, write = (states + again) * a_second, states * a_second
            slow_down(folder, read, write)
            speed = f"reads {read / 1e9:.2f}, writes {write / 1e9:.2f} GB/s"
        print(
            f"{parameters} parameters, {alone:.3f} s a step in memory; {arguments.drive} drive, "
            f"{speed}",
            flush=True,
        )
        other = offloaded(arguments, folder, gbps)
        other.burst(batch)
        ratios = []
        for pair in range(arguments.pairs):
            a, b = plain.burst(batch), other.burst(batch)
            ratios.append(b / a)
            print(f"pair {pair + 1}: {a:.3f} s, {b:.3f} s, ratio {ratios[-1]:.3f}", flush=True)
        close = getattr(other.optimizer, "close", None)
        if close is not None:
            close()
    print(
        f"level {arguments.level}, {arguments.dtype}: median {statistics.median(ratios):.3f}, "
        f"least {min(ratios):.3f}, largest {max(ratios):.3f}"
    )


if __name__ == "__main__":
    main()
