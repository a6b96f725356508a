"""The contract of ``torch.amp.GradScaler`` with optimizers that scale gradients themselves."""

from __future__ import annotations

import torch


def loss_scale_of(optimizer: torch.optim.Optimizer) -> tuple[float, bool]:
    """Returns the loss scale of the gradients, and whether the scaler found one not finite.

    ``GradScaler.step`` sets ``grad_scale`` and ``found_inf`` during ``step()``, because the
    optimizer has ``_step_supports_amp_scaling``. After ``unscale_`` a scaler gives no scale.
    """
    scale = getattr(optimizer, "grad_scale", None)
    found = getattr(optimizer, "found_inf", None)
    return (1.0 if scale is None else float(scale)), found is not None and bool(found)
