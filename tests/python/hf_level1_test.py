"""transformers' Trainer with an optimizer of penstock, by its public optimizer_cls_and_kwargs."""

from __future__ import annotations

import os
import shutil
import unittest
from typing import Any

import hf_support as support
import penstock
import torch
import transformers
from hf_support import Rows, StopAt, TrainerTest
from penstock.integrations.hf import TrainerCallback


class Level1(TrainerTest):
    def trainer(self, name: str, callbacks: list[Any], **arguments: Any) -> transformers.Trainer:
        options = {"nvme_path": self.nvme, "config": {"penstock": {"tile_elements": 4096}}}
        return support.quiet(
            transformers.Trainer(
                model=support.model(),
                args=self.arguments(name, **arguments),
                train_dataset=Rows(),
                optimizer_cls_and_kwargs=(penstock.AdamW, {"lr": 1e-3, **options}),
                callbacks=callbacks,
            )
        )

    def close(self, trainer: transformers.Trainer) -> None:
        trainer.optimizer.optimizer.close()

    def train(
        self, name: str, callbacks: list[Any], resume: Any = None, **arguments: Any
    ) -> tuple[list[float], dict[str, torch.Tensor]]:
        trainer = self.trainer(name, callbacks, **arguments)
        trainer.train(resume_from_checkpoint=resume)
        result = support.losses(trainer), support.weights(trainer.model)
        self.close(trainer)
        return result

    def test_stopped_at_7_of_20_and_resumed_it_equals_the_undisturbed_run(self) -> None:
        for accumulation in (1, 2):
            more = {"gradient_accumulation_steps": accumulation}
            losses, weights = self.train(f"whole {accumulation}", [], **more)
            self.assertEqual(len(losses), 20)
            name = f"stopped {accumulation}"
            self.train(name, [StopAt(7)], **more)
            resumed, after = self.train(name, [], resume=True, **more)
            self.assertEqual(resumed, losses)
            self.assert_same_weights(after, weights)

    def test_every_checkpoint_that_rotation_leaves_is_resumed(self) -> None:
        losses, weights = self.train("whole", [])
        saving = {"save_strategy": "steps", "save_steps": 2, "save_total_limit": 2}
        self.train("saved", [TrainerCallback(), StopAt(9)], **saving)
        output = self.output("saved")
        steps = sorted(int(f.split("-")[1]) for f in os.listdir(output) if f.startswith("check"))
        self.assertEqual(steps, [8, 9])
        self.assertEqual(self.kept(), ["kept-8", "kept-9"])
        resumed, after = self.train(
            "saved", [TrainerCallback()], resume=f"{output}/checkpoint-8", **saving
        )
        self.assertEqual(resumed, losses)
        self.assert_same_weights(after, weights)
        self.assertEqual(self.kept(), ["kept-18", "kept-20"])

    def test_what_another_output_folder_keeps_stays(self) -> None:
        saving = {"save_strategy": "steps", "save_steps": 2, "save_total_limit": 1}
        self.train("one", [TrainerCallback(), StopAt(4)], **saving)
        checkpoint = self.output("one") + "/checkpoint-4"
        self.train("other", [TrainerCallback(), StopAt(6)], resume=checkpoint, **saving)
        self.assertEqual(self.kept(), ["kept-4", "kept-6"])
        shutil.rmtree(checkpoint)
        self.train("one", [TrainerCallback(), StopAt(2)], **saving)  # a run of its own
        self.assertEqual(self.kept(), ["kept-2", "kept-4", "kept-6"])

    def test_without_the_callback_an_older_checkpoint_is_refused_with_a_line(self) -> None:
        saving = {"save_strategy": "steps", "save_steps": 2, "max_steps": 4}
        self.train("saved", [], **saving)
        with self.assertRaisesRegex(penstock.InvalidArgumentError, "was saved and not kept"):
            self.train("saved", [], resume=self.output("saved") + "/checkpoint-2", **saving)

    def test_the_callback_says_if_the_optimizer_is_another(self) -> None:
        trainer = transformers.Trainer(
            model=support.model(),
            args=self.arguments("other", max_steps=1, save_strategy="steps", save_steps=1),
            train_dataset=Rows(),
            callbacks=[TrainerCallback()],
        )
        with self.assertRaisesRegex(penstock.InvalidArgumentError, "not of penstock"):
            support.quiet(trainer).train()


if __name__ == "__main__":
    unittest.main()
