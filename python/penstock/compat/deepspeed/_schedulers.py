"""The schedulers of a configuration (docs/config.md): those with a warm-up."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch

from penstock.errors import InvalidArgumentError

_OPTIONS = {
    "WarmupLR": ("warmup_min_lr", "warmup_max_lr", "warmup_num_steps", "warmup_type"),
    "WarmupDecayLR": (
        "total_num_steps",
        "warmup_min_lr",
        "warmup_max_lr",
        "warmup_num_steps",
        "warmup_type",
    ),
    "WarmupCosineLR": (
        "total_num_steps",
        "warmup_min_ratio",
        "warmup_num_steps",
        "warmup_type",
        "cos_min_ratio",
    ),
}


def _read(kind: str, params: Mapping[str, Any], lr: float) -> dict[str, Any]:
    defaults = {
        "warmup_min_lr": 0.0,
        "warmup_max_lr": lr if kind == "WarmupLR" else 1e-3,
        "warmup_num_steps": 1000,
        "warmup_type": "log",
        "warmup_min_ratio": 0.0,
        "cos_min_ratio": 1e-4,
    }
    read = {key: defaults.get(key) for key in _OPTIONS[kind]}
    for key, value in params.items():
        if key not in read and not (key == "last_batch_iteration" and value == -1):
            raise InvalidArgumentError(f"penstock: scheduler.params.{key} is unknown to {kind}")
        if value == "auto":
            raise InvalidArgumentError(
                f'penstock: scheduler.params.{key} is "auto", which a trainer resolves; give a number'
            )
        if key in read and value is not None:
            read[key] = value
    if "total_num_steps" in read and read["total_num_steps"] is None:
        raise InvalidArgumentError(f"penstock: {kind} needs scheduler.params.total_num_steps")
    return read


def _rate(kind: str, of: Mapping[str, Any], lr: float) -> Callable[[int], float]:
    """Returns the rate of each iteration."""
    warm = max(2, int(of["warmup_num_steps"]))
    total = int(of.get("total_num_steps") or 0)

    def share(i: int) -> float:
        return math.log(i + 1) / math.log(warm) if of["warmup_type"] == "log" else i / warm

    def linear(i: int) -> float:
        low, high = of["warmup_min_lr"], of["warmup_max_lr"]
        if i < warm:
            return float(low + (high - low) * share(i))
        if kind == "WarmupLR":
            return float(high)
        left = max(0.0, (total - i) / max(1.0, total - warm))
        return float(low + (high - low) * left)

    def cosine(i: int) -> float:
        if i < warm:
            low = of["warmup_min_ratio"]
            return float(lr * (low + (1 - low) * share(i)))
        low = of["cos_min_ratio"]
        done = min(1.0, (i - warm + 1) / max(1, total - warm))
        return float(lr * (low + (1 - low) * (1 + math.cos(math.pi * done)) / 2))

    return cosine if kind == "WarmupCosineLR" else linear


class _Schedule(torch.optim.lr_scheduler.LRScheduler):
    """One rate for all parameter groups."""

    def __init__(self, optimizer: torch.optim.Optimizer, rate: Callable[[int], float]) -> None:
        self._rate = rate
        super().__init__(optimizer)

    def get_lr(self) -> list[float | torch.Tensor]:
        return [self._rate(self.last_epoch) for _ in self.optimizer.param_groups]

    def state_dict(self) -> dict[str, Any]:
        return {"last_epoch": self.last_epoch}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.last_epoch = state_dict["last_epoch"]
        for group, lr in zip(self.optimizer.param_groups, self.get_lr()):
            group["lr"] = lr
        self._last_lr = self.get_lr()


def scheduler_of(section: Mapping[str, Any] | None, optimizer: torch.optim.Optimizer) -> Any:
    """Returns the scheduler that ``scheduler`` of a configuration names; None: there is none."""
    kind = (section or {}).get("type")
    if kind is None:
        return None
    if kind not in _OPTIONS:
        raise InvalidArgumentError(
            f"penstock: scheduler.type is {kind}; here are {', '.join(_OPTIONS)}: for others give "
            "initialize a scheduler of torch (lr_scheduler=)"
        )
    lr = float(optimizer.defaults["lr"])
    of = _read(kind, (section or {}).get("params") or {}, lr)
    return _Schedule(optimizer, _rate(kind, of, lr))
