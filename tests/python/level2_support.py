"""What tests of level 2 have in common: models in training, and the same in plain memory."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from typing import Any

import matrix
import penstock
import tiny_models
import torch
from penstock import reference

torch.set_num_threads(1)


@contextlib.contextmanager
def training(
    name: str = "gpt2",
    home: str = "nvme",
    *,
    model: torch.nn.Module | None = None,
    checkpoint: bool | None = None,
    micro_batches: int = 1,
    run: str | None = None,
    more: dict[str, Any] | None = None,
    **options: Any,
) -> Iterator[tuple[Any, Any]]:
    """Yields a module and its optimizer, and closes them. ``more`` goes into the configuration."""
    with tempfile.TemporaryDirectory() as folder:
        settings = {
            **matrix.config(home, os.path.dirname(run) if run else folder, micro_batches),
            **(more or {}),
        }
        made = model if model is not None else tiny_models.make(name, checkpoint=checkpoint)
        where = run or os.path.join(folder, "run")
        model_, optimizer = penstock.initialize(made, settings, run=where, **options)
        try:
            yield model_, optimizer
        finally:
            optimizer.close()


def plain(name: str = "gpt2", checkpoint: bool | None = None, **options: Any) -> tuple[Any, Any]:
    """Returns a module and an optimizer in plain memory, which :func:`training` equals."""
    model = tiny_models.make(name, checkpoint=checkpoint)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return model, reference.AdamW(trained, lr=1e-3, weight_decay=0.1, **options)


def backward(model: Any, name: str, number: int) -> torch.Tensor:
    loss = tiny_models.loss_of(model(**tiny_models.batch(name, number)))
    loss.backward()
    return loss.detach()


def step(model: Any, optimizer: Any, name: str, number: int) -> torch.Tensor:
    """Makes one step, with dropout that depends on its number alone."""
    torch.manual_seed(number)
    loss = backward(model, name, number)
    optimizer.step()
    optimizer.zero_grad()
    return loss


def equal_weights(a: Any, b: Any) -> bool:
    first, second = a.state_dict(), b.state_dict()
    return first.keys() == second.keys() and all(
        torch.equal(first[key], second[key]) for key in first
    )
