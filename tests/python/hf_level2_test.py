"""penstock.integrations.hf.Trainer: a DeepSpeed configuration without DeepSpeed."""

from __future__ import annotations

import glob
import json
import math
import os
import shutil
import unittest
from typing import Any
from unittest import mock

import hf_support as support
import penstock
import torch
import transformers
from hf_support import Rows, StopAt, TrainerTest
from penstock.integrations.hf import Trainer

AUTO = {
    "train_batch_size": "auto",
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "gradient_clipping": "auto",
    "bf16": {"enabled": "auto"},
    "fp16": {"enabled": "auto"},
    "optimizer": {
        "type": "AdamW",
        "params": {"lr": "auto", "betas": "auto", "eps": "auto", "weight_decay": "auto"},
    },
}


class Level2(TrainerTest):
    def config(self, device: str = "nvme", **more: Any) -> dict[str, Any]:
        home = {"device": device}
        if device == "nvme":
            home["nvme_path"] = self.nvme
        zero = {"stage": 3, "offload_optimizer": home, "offload_param": home}
        return {**AUTO, "zero_optimization": zero, "penstock": {"tile_elements": 4096}, **more}

    def trainer(
        self, name: str, callbacks: Any = (), config: Any = None, model: str = "gpt2", **more: Any
    ) -> Trainer:
        trainer = Trainer(
            model=support.model(model),
            args=self.arguments(name, **more),
            train_dataset=Rows(),
            eval_dataset=Rows(4),
            callbacks=list(callbacks),
            penstock_config=self.config() if config is None else config,
        )
        return support.quiet(trainer)

    def train(
        self, name: str, callbacks: Any = (), resume: Any = None, **more: Any
    ) -> tuple[list[float], dict[str, torch.Tensor]]:
        trainer = self.trainer(name, callbacks, **more)
        trainer.train(resume_from_checkpoint=resume)
        result = support.losses(trainer), support.weights(trainer.model)
        trainer.close()
        return result

    def test_stopped_at_7_of_20_and_resumed_it_equals_the_undisturbed_run(self) -> None:
        for device, more in (
            ("nvme", {"gradient_accumulation_steps": 2}),
            ("cpu", {"bf16": True, "eval_strategy": "steps", "eval_steps": 4}),
        ):
            more = {"config": self.config(device), **more}
            losses, weights = self.train(f"whole {device}", **more)
            self.assertEqual(len(losses), 20)
            self.train(f"stopped {device}", [StopAt(7)], **more)
            resumed, after = self.train(f"stopped {device}", resume=True, **more)
            self.assertEqual(resumed, losses)
            self.assert_same_weights(after, weights)

    def test_every_checkpoint_that_rotation_leaves_is_resumed(self) -> None:
        losses, weights = self.train("whole")
        saving = {"save_strategy": "steps", "save_steps": 2, "save_total_limit": 2}
        self.train("saved", [StopAt(9)], **saving)
        self.assertEqual(self.kept("saved"), ["checkpoint-8", "checkpoint-9"])
        before = self.states()
        checkpoint = self.output("saved") + "/checkpoint-8"
        shutil.copytree(checkpoint, self.output("moved") + "/checkpoint-8")
        for name in ("saved", "moved"):
            checkpoint = self.output(name) + "/checkpoint-8"
            resumed, after = self.train(name, resume=checkpoint, **saving)
            self.assertEqual(resumed, losses)
            self.assert_same_weights(after, weights)
            self.assertEqual(self.kept(name), ["checkpoint-18", "checkpoint-20"])
            self.assertEqual(self.states(), before)

    def test_a_checkpoint_that_lost_its_snapshot_is_refused_with_a_line(self) -> None:
        saving = {"save_strategy": "steps", "save_steps": 2, "max_steps": 4}
        self.train("saved", **saving)
        checkpoint = self.output("saved") + "/checkpoint-2"
        shutil.rmtree(checkpoint + "/penstock")
        with self.assertRaisesRegex(
            penstock.InvalidArgumentError, "only the last commit or a snapshot can be resumed"
        ):
            self.train("saved", resume=checkpoint, **saving)

    def test_it_has_the_losses_of_transformers_own_optimizer_to_rounding(self) -> None:
        losses, _ = self.train("ours", max_steps=10)
        plain = transformers.Trainer(
            model=support.model(),
            args=self.arguments("plain", max_steps=10),
            train_dataset=Rows(),
        )
        support.quiet(plain).train()
        for mine, other in zip(losses, support.losses(plain)):
            self.assertAlmostEqual(mine, other, delta=2e-4 * other)  # logs have four decimals

    def test_rows_have_the_losses_that_the_steps_trained_on(self) -> None:
        for by_items in (True, False):  # how the Trainer takes the mean over micro-batches
            with self.subTest(by_items=by_items):
                trainer = self.trainer("rows", gradient_accumulation_steps=4, max_steps=4)
                trainer.model_accepts_loss_kwargs = by_items
                trainer.train()
                rows = self.rows()
                trainer.close()
                self.assertEqual([row["step"] for row in rows], [1, 2, 3, 4])
                for row, logged in zip(rows, support.losses(trainer)):  # of 4 or 2 micro-batches
                    self.assertAlmostEqual(row["loss"], logged, places=5)

    def rows(self) -> list[dict[str, Any]]:
        """Returns the rows of the newest run."""
        found = glob.glob(f"{self.nvme}/penstock-*/metrics.jsonl")
        with open(max(found, key=os.path.getmtime)) as file:
            return [json.loads(line) for line in file]

    def test_one_loss_that_is_not_finite_skips_its_step_and_two_end_the_training(self) -> None:
        saving = {"save_strategy": "steps", "save_steps": 2, "max_steps": 10}
        losses, weights = self.train("whole", **saving)

        class Poisoned(Trainer):
            bad: tuple[int, ...] = ()

            def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
                loss = super().compute_loss(*args, **kwargs)
                return loss * math.nan if self.state.global_step + 1 in self.bad else loss

        for bad in ((5,), (5, 6)):
            name = f"{len(bad)} bad"
            with self.subTest(name):
                with mock.patch(f"{__name__}.Trainer", Poisoned):
                    trainer = self.trainer(name, **saving)
                trainer.bad = bad
                if len(bad) == 1:
                    with self.assertWarnsRegex(UserWarning, "step 5 was skipped: the loss"):
                        trainer.train()
                    self.assertEqual([row["skipped"] for row in self.rows()].count(True), 1)
                    trainer.close()
                    continue
                with (
                    self.assertWarnsRegex(
                        UserWarning, "checkpoint 6 is not saved, because no loss"
                    ),
                    self.assertRaisesRegex(
                        penstock.NumericError, "^step 6: the losses of 2 steps in a row .*$"
                    ),
                ):
                    trainer.train()
                with self.assertLogs("penstock", "WARNING") as logged:
                    trainer.close()
                self.assertIn("after the commit of step 4 was finite", logged.output[-1])
                self.assertNotIn("checkpoint-6", os.listdir(self.output(name)))
                checkpoint = self.output(name) + "/checkpoint-4"
                resumed, after = self.train(name, resume=checkpoint, **saving)
                self.assertEqual(resumed[4:], losses[4:])
                self.assert_same_weights(after, weights)

    def test_saved_models_have_real_weights(self) -> None:
        for model in ("gpt2", "lora"):
            trainer = self.trainer(f"saved {model}", model=model, max_steps=2)
            trainer.train()
            trainer.save_model(self.output(model))
            saved = support.weights(trainer.model)
            trainer.close()
            self.assertTrue(all(weight.isfinite().all() for weight in saved.values()))
            if model == "gpt2":
                loaded = transformers.GPT2LMHeadModel.from_pretrained(self.output(model))
                self.assert_same_weights(support.weights(loaded), saved)
            else:
                import safetensors.torch

                file = self.output(model) + "/adapter_model.safetensors"
                for name, weight in safetensors.torch.load_file(file).items():
                    inner = name.replace(".weight", ".default.weight")
                    self.assertTrue(torch.equal(weight, saved[inner]), name)

    def test_with_evaluation_between_steps_homes_change_nothing(self) -> None:
        more = {"max_steps": 6, "eval_strategy": "steps", "eval_steps": 2}
        losses, weights = self.train("device", config=self.config("none"), **more)
        away, after = self.train("nvme", **more)
        self.assertEqual(away, losses)
        self.assert_same_weights(after, weights)

    def test_a_configuration_is_a_file_as_well(self) -> None:
        path = self.output("ds_config.json")
        with open(path, "w") as file:
            json.dump(self.config(), file)
        losses, _ = self.train("file", max_steps=2, config=path)
        self.assertEqual(losses, self.train("mapping", max_steps=2)[0])

    def test_what_differs_from_the_arguments_is_named(self) -> None:
        config = self.config(gradient_clipping=0.5, train_micro_batch_size_per_gpu=3)
        with self.assertRaises(penstock.InvalidArgumentError) as raised:
            self.trainer("differs", config=config)
        self.assertIn("gradient_clipping is 0.5 and max_grad_norm 1.0", str(raised.exception))
        self.assertIn("train_micro_batch_size_per_gpu is 3", str(raised.exception))

    def test_what_is_not_offered_is_refused_with_a_line(self) -> None:
        scheduler = {"scheduler": {"type": "WarmupLR", "params": {}}}
        for part, options in (
            ("lr_scheduler_type", {"config": self.config(**scheduler)}),
            ("train in bf16", {"config": self.config(fp16={"enabled": True})}),
            (
                "from_pretrained",
                {
                    "load_best_model_at_end": True,
                    "save_strategy": "steps",
                    "eval_strategy": "steps",
                    "save_steps": 2,
                    "eval_steps": 2,
                },
            ),
            ("optimizer.type", {"optim": "adafactor"}),
        ):
            with self.subTest(part), self.assertRaisesRegex(penstock.InvalidArgumentError, part):
                self.trainer("refused", **options)

    def test_a_checkpoint_of_transformers_own_is_where_a_training_begins(self) -> None:
        plain = transformers.Trainer(
            model=support.model(),
            args=self.arguments("plain", max_steps=2, save_strategy="steps", save_steps=2),
            train_dataset=Rows(),
        )
        support.quiet(plain).train()
        checkpoint = self.output("plain") + "/checkpoint-2"
        os.unlink(checkpoint + "/optimizer.pt")
        trainer = self.trainer("ours", max_steps=2)
        trainer.train(resume_from_checkpoint=checkpoint)
        self.assert_same_weights(support.weights(trainer.model), support.weights(plain.model))
        trainer.close()


if __name__ == "__main__":
    unittest.main()
