"""fp16 at level 2: the loss is scaled as DeepSpeed scales it, and the scale follows overflows."""

from __future__ import annotations

import math
import os
import tempfile
import unittest
import warnings
from typing import Any

import torch
from level2_support import training
from penstock.errors import InvalidArgumentError
from torch import nn

_FP16 = {"enabled": True, "initial_scale_power": 8, "loss_scale_window": 3, "hysteresis": 1}


def net() -> Any:
    torch.manual_seed(4)
    return nn.Sequential(*(nn.Linear(16, 16) for _ in range(4))).half()


def batch(number: int) -> torch.Tensor:
    return torch.randn(4, 16, generator=torch.Generator().manual_seed(number)).half()


def loss_of(model: Any, number: int, factor: float = 1.0) -> torch.Tensor:
    loss: torch.Tensor = model(batch(number)).float().square().mean() * factor
    return loss


class Fp16(unittest.TestCase):
    def test_a_scaled_loss_gives_the_gradient_and_update_of_the_loss_itself(self) -> None:
        expected = net()
        with training(model=net(), more={"fp16": _FP16}) as (model, optimizer):
            self.assertEqual(optimizer.loss_scale, 256.0)
            loss = loss_of(expected, 0)
            (loss * 256).backward()
            norm = math.sqrt(
                sum(float(p.grad.double().square().sum()) for p in expected.parameters())
            )
            own = loss_of(model, 0)
            self.assertTrue(torch.equal(loss, own))
            optimizer.backward(own)
            self.assertAlmostEqual(optimizer.gradient_norm(), norm / 256, places=9)
            self.assertAlmostEqual(float(optimizer.clip_grad_norm_(1e9)), norm / 256, places=6)
            optimizer.step()
            self.assertAlmostEqual(optimizer.grad_norm, norm / 256, places=9)
            self.assertFalse(optimizer.skipped)

    def test_an_overflow_skips_the_step_and_halves_the_scale_which_grows_again(self) -> None:
        scales = []
        with tempfile.TemporaryDirectory() as folder:
            run = os.path.join(folder, "run")
            with training(model=net(), run=run, more={"fp16": _FP16}) as (model, optimizer):
                for number in range(6):
                    optimizer.backward(loss_of(model, number, 1e9 if number == 1 else 1.0))
                    with warnings.catch_warnings():
                        warnings.simplefilter("ignore")
                        optimizer.step()
                    self.assertEqual(optimizer.skipped, number == 1)
                    scales.append(optimizer.loss_scale)
                optimizer.commit()
            self.assertEqual(scales[:3], [256.0, 128.0, 128.0])
            self.assertEqual(scales[-1], 256.0)
            with training(model=net(), run=run, more={"fp16": _FP16}) as (_, optimizer):
                self.assertEqual(optimizer.loss_scale, 256.0)
                self.assertEqual(optimizer.updates, 5)

    def test_a_loss_that_was_not_scaled_is_refused(self) -> None:
        with training(model=net(), more={"fp16": _FP16}) as (model, optimizer):
            loss_of(model, 0).backward()
            for call in (optimizer.step, lambda: optimizer.clip_grad_norm_(1.0)):
                with self.assertRaisesRegex(InvalidArgumentError, r"optimizer\.backward\(loss\)"):
                    call()
            optimizer.zero_grad()
            optimizer.backward(loss_of(model, 0))
            optimizer.step()
            self.assertEqual(optimizer.steps, 1)

    def test_without_fp16_a_loss_is_not_scaled(self) -> None:
        with training(model=net().float()) as (model, optimizer):
            self.assertEqual(optimizer.loss_scale, 1.0)
            loss = model(batch(0).float()).square().mean()
            optimizer.backward(loss)
            optimizer.step()
            self.assertEqual(optimizer.steps, 1)


if __name__ == "__main__":
    unittest.main()
