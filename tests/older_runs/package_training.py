"""Trainings of the package that make_runs.py began and tests/python/older_runs_test.py resumes.

Every value that torch computes in them is rounded once, and no sum depends on an order, so that all
machines compute the same bits.
"""

from __future__ import annotations

import hashlib
import math
import os
import random
from typing import Any

import penstock
import torch

WIDTH = 8


class Model(torch.nn.Module):
    """Three blocks, whose inputs are unit vectors: a product with them only copies."""

    def __init__(self) -> None:
        super().__init__()
        linear = (torch.nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3))
        self.blocks = torch.nn.ModuleList(torch.nn.Sequential(one) for one in linear)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first, second, third = (block(x) for block in self.blocks)
        return first + second * third


class Training:
    """A model of fixed weights, with an optimizer of penstock and a scheduler that it keeps.

    Args:
        kind: of the run.
        run: its folder, or None.
        nvme: folders of nvme_path.
    """

    def __init__(self, kind: str, run: str | None, nvme: list[str]) -> None:
        dtype = torch.bfloat16 if len(nvme) > 1 else torch.float32
        self.model: Any = Model().to(dtype)
        with torch.no_grad():
            for index, weight in enumerate(self.model.parameters()):
                weight.copy_(torch.arange(64).reshape(8, 8).sub(31 - index).div(64))
        random.seed(1)
        torch.manual_seed(2)
        ours = {"penstock": {"tile_elements": 4096, "tier_split": False}}
        self.optimizer: Any
        if kind == "optimizer":
            groups = [
                {"params": [weight], "weight_decay": decay}
                for weight, decay in zip(self.model.parameters(), (0.1, 0.0, 0.25))
            ]
            places = {"nvme_path": nvme} if nvme else {}
            self.optimizer = penstock.AdamW(
                groups, lr=1e-2, model=self.model, run=run, config=ours, **places
            )
        else:
            home = {"device": "nvme", "nvme_path": nvme} if nvme else {"device": "cpu"}
            zero = {"stage": 3, "offload_param": home, "offload_optimizer": home}
            adam = {"type": "AdamW", "params": {"lr": 1e-2, "weight_decay": 0.1}}
            config = {**ours, "zero_optimization": zero, "optimizer": adam}
            self.model, self.optimizer = penstock.initialize(self.model, config, run=run)
        self.scheduler = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.75)

    def attach(self) -> int:
        """Returns how many steps were made."""
        self.optimizer.attach(scheduler=self.scheduler)
        steps: int = self.optimizer.steps
        return steps

    def step(self) -> str:
        """Returns the loss, exactly."""
        weight = next(self.model.parameters())
        target = torch.rand(WIDTH, WIDTH).mul(1 + random.random()).to(weight.dtype)
        error = self.model(torch.eye(WIDTH, dtype=weight.dtype)) - target
        terms = error * error
        terms.sum().backward()
        self.optimizer.step()
        self.scheduler.step()
        self.optimizer.zero_grad()
        return math.fsum(terms.flatten().tolist()).hex()

    def weights(self) -> dict[str, str]:
        """SHA-256 of each weight."""
        return {
            name: hashlib.sha256(
                weight.contiguous().view(torch.uint8).numpy().tobytes()
            ).hexdigest()
            for name, weight in sorted(self.model.state_dict().items())
        }


def places(root: str, place: str) -> tuple[str | None, list[str]]:
    """The run and the folders of nvme_path, of which one that is not named has no run."""
    nvme = {"run": [], "nvme": ["nvme"], "paths": ["nvme", "nvme2"], "unnamed": ["nvme"]}[place]
    run = None if place == "unnamed" else os.path.join(root, "run")
    return run, [os.path.join(root, name) for name in nvme]
