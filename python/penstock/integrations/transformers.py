"""For transformers' Trainer with an optimizer of penstock (docs/pytorch_optimizers.md)."""

from __future__ import annotations

import os
import shutil
import warnings
from typing import Any

import torch
import transformers

from penstock.optim import OffloadedOptimizer


class TrainerCallback(transformers.TrainerCallback):
    """Keeps a snapshot of the optimizer's state in each checkpoint's folder.

    So every checkpoint can be continued, and not the last one alone. The Trainer removes a snapshot
    with its checkpoint.
    """

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        optimizer = kwargs.get("optimizer")
        optimizer = getattr(optimizer, "optimizer", optimizer)  # accelerate wraps it
        if not isinstance(optimizer, OffloadedOptimizer) or args.save_only_model:
            return
        folder = os.path.join(args.output_dir, f"checkpoint-{state.global_step}")
        saved = os.path.join(folder, "optimizer.pt")
        if not os.path.exists(saved):
            warnings.warn(
                f"penstock: {saved} is not there, so checkpoint {state.global_step} has no snapshot",
                stacklevel=2,
            )
            return
        state_dict = torch.load(saved, weights_only=True)
        if state_dict["penstock"] is None:
            return  # before the first step
        place = os.path.join(folder, "penstock")
        shutil.rmtree(place, ignore_errors=True)  # of a checkpoint that was written over
        state_dict["penstock"]["snapshot"] = optimizer.snapshot(place)
        torch.save(state_dict, saved + ".new")
        os.replace(saved + ".new", saved)
