"""Optimizers of torch whose states live on NVMe or in host memory.

    optimizer = penstock.AdamW(model.parameters(), lr=2e-5, nvme_path="/nvme")

Everything else of a training loop stays as it is: parameter groups, schedulers, clipping,
``GradScaler``, closures, ``zero_grad``, ``state_dict``. Parameters stay torch's.
docs/pytorch_optimizers.md says what differs.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from penstock import _rules
from penstock._offloaded import OffloadedOptimizer, OffloadOptions

if TYPE_CHECKING:
    from typing import Unpack

__all__ = ["Adagrad", "Adam", "AdamW", "Lion", "OffloadedOptimizer"]


class AdamW(OffloadedOptimizer):
    """AdamW (:class:`torch.optim.AdamW`); see :class:`OffloadedOptimizer` for the other options."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        **options: Unpack[OffloadOptions],
    ) -> None:
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, _rules.ADAMW, defaults, **options)


class Adam(OffloadedOptimizer):
    """Adam (:class:`torch.optim.Adam`), whose decay is added to the gradient."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        **options: Unpack[OffloadOptions],
    ) -> None:
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, _rules.ADAM, defaults, **options)


class Lion(OffloadedOptimizer):
    """Lion (arXiv 2302.06675), with one moment."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-4,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
        **options: Unpack[OffloadOptions],
    ) -> None:
        defaults = {"lr": lr, "betas": betas, "weight_decay": weight_decay}
        super().__init__(params, _rules.LION, defaults, **options)


class Adagrad(OffloadedOptimizer):
    """Adagrad (:class:`torch.optim.Adagrad`)."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-2,
        lr_decay: float = 0.0,
        weight_decay: float = 0.0,
        initial_accumulator_value: float = 0.0,
        eps: float = 1e-10,
        **options: Unpack[OffloadOptions],
    ) -> None:
        defaults = {
            "lr": lr,
            "lr_decay": lr_decay,
            "eps": eps,
            "weight_decay": weight_decay,
            "initial_accumulator_value": initial_accumulator_value,
        }
        super().__init__(params, _rules.ADAGRAD, defaults, **options)
