"""Lightning trains with an optimizer of penstock, and resumes from its checkpoints."""

from __future__ import annotations

import logging
import unittest
import warnings
from typing import Any

import optimizer_support  # noqa: F401  (finds the package)
import penstock
import torch
from optimizer_support import OptimizerTest, tower

try:
    import lightning
    from lightning.pytorch.callbacks import ModelCheckpoint
except ImportError:
    lightning = None

_Base: Any = object if lightning is None else lightning.LightningModule
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Module(_Base):
    def __init__(self, make: Any) -> None:
        super().__init__()
        self.tower = tower()
        self.make = make
        self.losses: list[float] = []

    def training_step(self, batch: torch.Tensor, _: int) -> torch.Tensor:
        logits = self.tower(batch[:, :-1])
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self) -> Any:
        optimizer = self.make(self.named_parameters())
        scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=4)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": scheduler, "interval": "step"},
        }


@unittest.skipIf(lightning is None, "lightning is not installed")
class Lightning(OptimizerTest):
    def fit(
        self, module: Module, steps: int, accumulate: int = 1, checkpoint: str | None = None
    ) -> Any:
        rows = torch.randint(0, 50, (8, 9), generator=torch.Generator().manual_seed(4))
        loader = torch.utils.data.DataLoader(rows, batch_size=4)
        trainer = lightning.Trainer(
            accelerator="cpu",
            max_steps=steps,
            accumulate_grad_batches=accumulate,
            gradient_clip_val=1.0,
            logger=False,
            callbacks=[ModelCheckpoint(dirpath=self.folder, filename="{step}", save_top_k=-1)],
            enable_progress_bar=False,
            enable_model_summary=False,
            default_root_dir=self.folder,
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            trainer.fit(module, loader, ckpt_path=checkpoint)
        return trainer

    def stopped_and_resumed(self, make: Any) -> Module:
        """Trains four steps, and four more from the checkpoint; returns the module."""
        first, second = Module(make), Module(make)
        trainer = self.fit(first, 4)
        if hasattr(trainer.optimizers[0], "close"):
            trainer.optimizers[0].close()
        self.fit(second, 8, checkpoint=trainer.checkpoint_callback.best_model_path)
        second.losses = first.losses + second.losses
        return second

    def test_it_has_the_bits_of_the_reference_also_from_a_checkpoint(self) -> None:
        def ours(params: Any) -> Any:
            return self.make(params, lr=1e-2)

        def plain(params: Any) -> Any:
            return penstock.reference.AdamW(params, lr=1e-2)

        expected, module = Module(plain), Module(ours)
        for one in (expected, module):
            self.fit(one, 3, accumulate=2)
        self.assertEqual(module.losses, expected.losses)
        self.assert_same_weights(module, expected)
        # Lightning resumes its schedulers and batches in its own way, and alike for both.
        expected, module = self.stopped_and_resumed(plain), self.stopped_and_resumed(ours)
        self.assertEqual(len(module.losses), 8)
        self.assertEqual(module.losses, expected.losses)
        self.assert_same_weights(module, expected)


if __name__ == "__main__":
    unittest.main()
