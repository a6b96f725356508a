"""transformers' Trainer with our optimizer: stopped, resumed from any checkpoint, and equal."""

from __future__ import annotations

import os
import unittest
from typing import Any, ClassVar

from optimizer_support import OptimizerTest

os.environ["HF_HUB_OFFLINE"] = "1"

import penstock
import torch
from penstock import reference
from penstock.errors import InvalidArgumentError

try:
    import transformers
except ImportError as error:
    raise unittest.SkipTest("transformers is not installed") from error
transformers.utils.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()

STEPS = 20


class Rows(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 64

    def __getitem__(self, i: int) -> dict[str, torch.Tensor]:
        tokens = torch.randint(0, 60, (12,), generator=torch.Generator().manual_seed(i))
        return {"input_ids": tokens, "labels": tokens}


class StopAfter(transformers.TrainerCallback):
    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == self.step:
            control.should_training_stop = control.should_save = True


class TrainersGoOn(OptimizerTest):
    plain: torch.nn.Module | None = None  # what a training without offloading comes to
    expected: ClassVar[list[float]] = []

    def setUp(self) -> None:
        super().setUp()
        if TrainersGoOn.plain is None:
            plain, trainer = self.trainer("plain", reference.AdamW, {})
            TrainersGoOn.expected = self.train(plain, trainer)
            TrainersGoOn.plain = plain

    def trainer(
        self, name: str, optimizer: Any, options: dict[str, Any], **arguments: Any
    ) -> tuple[torch.nn.Module, Any]:
        torch.manual_seed(0)
        config = transformers.GPT2Config(
            n_layer=2,
            n_head=2,
            n_embd=32,
            vocab_size=64,
            n_positions=16,
            bos_token_id=None,
            eos_token_id=None,
        )
        model = transformers.GPT2LMHeadModel(config)
        callbacks = arguments.pop("callbacks", [])
        settings = transformers.TrainingArguments(
            os.path.join(self.folder, name),
            max_steps=STEPS,
            per_device_train_batch_size=4,
            gradient_accumulation_steps=2,
            learning_rate=1e-2,
            warmup_steps=3,
            logging_steps=1,
            report_to=[],
            use_cpu=True,
            disable_tqdm=True,
            seed=3,
            **{"save_steps": 1000, **arguments},
        )
        trainer = transformers.Trainer(
            model,
            settings,
            train_dataset=Rows(),
            optimizer_cls_and_kwargs=(optimizer, {"lr": 1e-2, **options}),
            callbacks=callbacks,
        )
        trainer.remove_callback(transformers.trainer_callback.PrinterCallback)
        return model, trainer

    def ours(self, name: str, **arguments: Any) -> tuple[torch.nn.Module, Any]:
        return self.trainer(name, penstock.AdamW, self.placement("nvme"), **arguments)

    @staticmethod
    def train(model: torch.nn.Module, trainer: Any, resume: Any = None) -> list[float]:
        trainer.train(resume_from_checkpoint=resume)
        return [row["loss"] for row in trainer.state.log_history if "loss" in row]

    @staticmethod
    def close(trainer: Any) -> None:
        getattr(trainer.optimizer, "optimizer", trainer.optimizer).close()

    def test_a_trainer_that_is_stopped_at_7_of_20_and_resumed_is_equal(self) -> None:
        model, trainer = self.ours("ours", callbacks=[StopAfter(7)])
        self.assertEqual(self.train(model, trainer), self.expected[:7])
        self.close(trainer)
        model, trainer = self.ours("ours")
        self.assertEqual(self.train(model, trainer, resume=True), self.expected)
        self.assert_same_weights(model, self.plain)
        self.close(trainer)

    def test_any_checkpoint_that_is_kept_can_be_continued(self) -> None:
        callback = penstock.integrations.TrainerCallback
        model, trainer = self.ours("ours", callbacks=[callback()], save_steps=4, save_total_limit=3)
        self.assertEqual(self.train(model, trainer), self.expected)
        self.close(trainer)
        folder = os.path.join(self.folder, "ours")
        kept = sorted(os.listdir(folder))
        self.assertEqual(kept, ["checkpoint-12", "checkpoint-16", "checkpoint-20"])
        for name in ("checkpoint-16", "checkpoint-12", "checkpoint-16"):
            model, trainer = self.ours("ours", callbacks=[callback()], save_steps=4)
            losses = self.train(model, trainer, resume=os.path.join(folder, name))
            self.assertEqual(losses, self.expected)
            self.assert_same_weights(model, self.plain)
            self.close(trainer)
        runs = [name for name in os.listdir(self.folder) if name.startswith("penstock-")]
        self.assertEqual(len(runs), 1)
        self.assertEqual(len(os.listdir(os.path.join(self.folder, runs[0]))), 3)

    def test_without_snapshots_only_the_last_checkpoint_is_continued(self) -> None:
        model, trainer = self.ours("ours", save_steps=10)
        self.train(model, trainer)
        self.close(trainer)
        model, trainer = self.ours("ours")
        with self.assertRaisesRegex(InvalidArgumentError, "step 10 was saved.*of step 20"):
            trainer.train(resume_from_checkpoint=os.path.join(self.folder, "ours", "checkpoint-10"))
        self.close(trainer)

    def test_the_callback_says_if_the_optimizer_is_another(self) -> None:
        callback = penstock.integrations.TrainerCallback
        _, trainer = self.trainer(
            "other", reference.AdamW, {}, callbacks=[callback()], save_steps=1
        )
        with self.assertRaisesRegex(InvalidArgumentError, "not of penstock"):
            trainer.train()


if __name__ == "__main__":
    unittest.main()
