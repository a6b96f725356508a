"""A script for DeepSpeed runs with one changed import, and resumes from its checkpoints."""

from __future__ import annotations

import argparse
import errno
import glob
import json
import math
import os
import shutil
import unittest
from typing import Any
from unittest import mock

import optimizer_support as support
import penstock
import penstock.compat.deepspeed as deepspeed
import torch
from optimizer_support import OptimizerTest, decay_groups, loss_of, tower
from penstock import _run, reference


class DeepSpeed(OptimizerTest):
    def config(self, **more: Any) -> dict[str, Any]:
        home = {"device": "nvme", "nvme_path": self.folder}
        config = {
            "train_micro_batch_size_per_gpu": 4,
            "gradient_accumulation_steps": 2,
            "gradient_clipping": 0,
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "weight_decay": 0.1}},
            "zero_optimization": {"stage": 3, "offload_optimizer": home, "offload_param": home},
            "penstock": {"tile_elements": support.TILE},
        }
        return {**config, **more}

    def engine(self, model: torch.nn.Module, **options: Any) -> Any:
        result = deepspeed.initialize(model=model, **{"config": self.config(), **options})
        self.addCleanup(result[0].destroy)
        return result[0]

    def train(self, engine: Any, generator: torch.Generator, steps: int) -> list[float]:
        losses = []
        for _ in range(steps * engine.gradient_accumulation_steps()):
            loss = loss_of(engine, generator)
            engine.backward(loss)
            engine.step()
            losses.append(loss.item())
        return losses

    def test_a_loop_has_the_bits_of_the_reference(self) -> None:
        model, plain = tower(dropout=0.1), tower(dropout=0.1)
        engine = self.engine(model)
        torch.manual_seed(2)
        losses = self.train(engine, torch.Generator().manual_seed(1), 4)
        trained = list(plain.parameters())
        optimizer = reference.AdamW(trained, lr=1e-3, weight_decay=0.1, model=plain)
        torch.manual_seed(2)
        generator = torch.Generator().manual_seed(1)
        expected = []
        for number in range(8):
            loss = loss_of(plain, generator)
            (loss / 2).backward()
            optimizer.micro_batch()
            if number % 2:
                optimizer.step()
                optimizer.zero_grad()
            expected.append(loss.item())
        self.assertEqual(losses, expected)
        for name, weight in engine.state_dict().items():
            self.assertTrue(torch.equal(weight, plain.state_dict()[name]), name)
        self.assertEqual((engine.global_steps, engine.micro_steps), (4, 8))
        self.assertEqual(engine.train_batch_size(), 8)

    def test_a_checkpoint_whose_text_was_cut_or_changed_is_refused_in_a_line(self) -> None:
        engine = self.engine(tower())
        self.train(engine, torch.Generator().manual_seed(1), 1)
        place = os.path.join(self.folder, "checkpoints")
        engine.save_checkpoint(place, "one")
        path = os.path.join(place, "one", "penstock.json")
        with open(path, encoding="utf-8") as file:
            said = json.load(file)
        cut = [{k: v for k, v in said.items() if k != key} for key in said]
        changed = [{**said, key: [None]} for key in said]
        for text in (*cut, *changed, [], {**said, "random": {"torch": {"$bytes": 3}}}):
            with open(path, "w", encoding="utf-8") as file:
                json.dump(text, file)
            with self.assertRaises(penstock.CorruptionError) as caught:
                engine.load_checkpoint(place, "one")
            self.assert_line(caught.exception, path)

    def test_a_checkpoint_is_continued_even_when_others_followed(self) -> None:
        scheduler = {"type": "WarmupLR", "params": {"warmup_num_steps": 6}}
        config = self.config(scheduler=scheduler)
        engine = self.engine(tower(dropout=0.1), config=config)
        torch.manual_seed(2)
        generator = torch.Generator().manual_seed(1)
        self.train(engine, generator, 2)
        state = {"generator": generator.get_state(), "epoch": 3}
        place = os.path.join(self.folder, "checkpoints")
        engine.save_checkpoint(place, client_state=state)
        expected = self.train(engine, generator, 2)
        engine.save_checkpoint(place, tag="later")
        weights = {name: w.clone() for name, w in engine.state_dict().items()}
        moved = shutil.move(place, place + "-moved")
        engine.destroy()
        other = self.engine(tower(dropout=0.1), config=config)
        path, client = other.load_checkpoint(moved, tag="global_step2")
        self.assertEqual(path, os.path.join(moved, "global_step2"))
        self.assertEqual((client["epoch"], other.global_steps, other.micro_steps), (3, 2, 4))
        generator = torch.Generator()
        generator.set_state(client["generator"])
        self.assertEqual(self.train(other, generator, 2), expected)
        for name, weight in other.state_dict().items():
            self.assertTrue(torch.equal(weight, weights[name]), name)
        other.load_checkpoint(moved)  # latest, in the same engine
        self.assertEqual(other.global_steps, 4)

    def test_a_checkpoint_replaces_checkpoints_alone(self) -> None:
        engine = self.engine(tower())
        self.train(engine, torch.Generator().manual_seed(1), 1)
        place = os.path.join(self.folder, "parent", "checkpoints")
        mine = os.path.join(place, "mine")
        os.makedirs(mine)
        for folder in (mine, os.path.dirname(place)):
            with open(os.path.join(folder, "data.txt"), "w", encoding="utf-8") as file:
                file.write("data")
        for tag in ("mine", "", ".", "..", "a/b", "../../x"):
            with self.subTest(tag), self.assertRaises(penstock.InvalidArgumentError) as caught:
                engine.save_checkpoint(place, tag=tag)
            self.assert_line(caught.exception)
        self.assertEqual(os.listdir(mine), ["data.txt"])
        self.assertEqual(sorted(os.listdir(os.path.dirname(place))), ["checkpoints", "data.txt"])
        for _ in range(2):
            engine.save_checkpoint(place, tag="a")
        self.assertEqual(sorted(os.listdir(place)), ["a", "latest", "mine"])
        engine.load_checkpoint(place)
        self.assertEqual(engine.global_steps, 1)

    def test_what_the_system_refuses_is_a_line_with_the_path_and_leaves_nothing(self) -> None:
        engine = self.engine(tower())
        self.train(engine, torch.Generator().manual_seed(1), 1)
        place = os.path.join(self.folder, "checkpoints")
        engine.save_checkpoint(place, tag="a")
        file = os.path.join(place, "latest")
        for folder, tag in ((file, "a"), (file + "/x", "a"), (place, "x" * 300)):
            with self.subTest(folder=folder), self.assertRaises(penstock.PenstockError) as caught:
                engine.save_checkpoint(folder, tag=tag)
            self.assert_line(caught.exception, "cannot be written", folder)
        with self.assertRaises(penstock.PenstockError) as caught:
            engine.save_16bit_model(file)
        self.assert_line(caught.exception, "cannot be written", file)
        with self.assertRaises(penstock.PenstockError) as caught:
            engine.load_checkpoint(place, tag="x" * 300)
        self.assert_line(caught.exception, place)
        for call in (engine.save_checkpoint, engine.load_checkpoint, engine.save_16bit_model):
            with self.assertRaises(penstock.InvalidArgumentError) as caught:
                call(5)
            self.assert_line(caught.exception, "_dir is 5; give ")
        full = OSError(errno.ENOSPC, "No space left on device")
        with mock.patch.object(_run.os, "replace", side_effect=full):
            with self.assertRaises(penstock.OutOfSpaceError) as caught:
                engine.save_checkpoint(place, tag="b")
        self.assert_line(caught.exception, place, "cannot be written")
        self.assertEqual(sorted(os.listdir(place)), ["a", "latest"])

    def test_without_a_checkpoint_none_is_returned(self) -> None:
        engine = self.engine(tower())
        self.assertEqual(engine.load_checkpoint(self.folder), (None, {}))
        os.makedirs(os.path.join(self.folder, "global_step1"))
        with self.assertRaisesRegex(penstock.InvalidArgumentError, "universal checkpoint"):
            engine.load_checkpoint(self.folder, tag="global_step1")

    def test_optimizers_of_torch_and_groups_are_taken_over(self) -> None:
        losses = []
        for form in ("torch", "groups"):
            model = tower()
            groups = decay_groups(model)
            options: dict[str, Any] = {"model_parameters": groups}
            if form == "torch":
                options = {"optimizer": torch.optim.AdamW(groups, lr=1e-3)}
            config = self.config()
            del config["optimizer"]["params"]["weight_decay"]
            engine = self.engine(model, config=config, **options)
            losses.append(self.train(engine, torch.Generator().manual_seed(1), 3))
        self.assertEqual(*losses)
        with self.assertRaisesRegex(penstock.InvalidArgumentError, "SGD"):
            model = tower()
            self.engine(model, optimizer=torch.optim.SGD(model.parameters()))

    def test_schedulers_of_the_configuration_have_deepspeeds_rates(self) -> None:
        warm = {"warmup_num_steps": 4, "warmup_max_lr": 1e-2, "warmup_min_lr": 1e-3}
        rates = {
            "WarmupLR": (warm, [1e-3 + 9e-3 * math.log(i + 1) / math.log(4) for i in range(4)]),
            "WarmupDecayLR": (
                {**warm, "warmup_type": "linear", "total_num_steps": 8},
                [1e-3 + 9e-3 * i / 4 for i in range(4)] + [1e-3 + 9e-3 * i / 4 for i in (4, 3)],
            ),
            "WarmupCosineLR": (
                {"warmup_num_steps": 2, "warmup_type": "linear", "total_num_steps": 6},
                [0.0, 5e-4, 1e-3 * (1e-4 + (1 - 1e-4) * (1 + math.cos(math.pi / 4)) / 2)],
            ),
        }
        for kind, (params, expected) in rates.items():
            config = self.config(scheduler={"type": kind, "params": params})
            config["gradient_accumulation_steps"] = 1
            engine = self.engine(tower(), config=config)
            seen = []
            generator = torch.Generator().manual_seed(1)
            for _ in expected:
                seen += engine.get_lr()
                self.train(engine, generator, 1)
            for rate, wanted in zip(seen, expected):
                self.assertAlmostEqual(rate, wanted, places=12, msg=kind)
        with self.assertRaisesRegex(penstock.InvalidArgumentError, "OneCycle"):
            self.engine(tower(), config=self.config(scheduler={"type": "OneCycle"}))

    def test_zero_init_and_gathered_parameters(self) -> None:
        with deepspeed.zero.Init():
            model = support.Tower()
        engine = self.engine(model)
        losses = self.train(engine, torch.Generator().manual_seed(1), 2)
        self.assertTrue(all(math.isfinite(loss) for loss in losses))
        weight = engine.module.head.weight
        with deepspeed.zero.GatheredParameters(weight):
            self.assertTrue(weight.isfinite().all())
        with deepspeed.zero.Init(enabled=False):
            self.assertEqual(support.Tower().head.weight.device.type, "cpu")
        with self.assertRaisesRegex(penstock.InvalidArgumentError, "written"):
            with deepspeed.zero.GatheredParameters(weight, modifier_rank=0):
                pass

    def rows(self) -> list[dict[str, Any]]:
        [path] = glob.glob(f"{self.folder}/penstock-*/metrics.jsonl")
        with open(path) as file:
            return [json.loads(line) for line in file]

    def test_rows_have_the_mean_loss_of_the_micro_batches(self) -> None:
        engine = self.engine(tower())
        losses = self.train(engine, torch.Generator().manual_seed(1), 2)
        means = [(losses[i] + losses[i + 1]) / 2 for i in (0, 2)]
        self.assertEqual([row["loss"] for row in self.rows()], means)

    def test_a_step_has_the_sum_of_what_was_computed_backward_however_often(self) -> None:
        engine = self.engine(tower())
        generator = torch.Generator().manual_seed(1)
        losses = [loss_of(engine, generator) for _ in range(2)]
        for loss in losses:  # both in the first micro-batch
            engine.backward(loss)
        engine.step()
        engine.step()
        self.assertEqual(
            [row["loss"] for row in self.rows()], [sum(loss.item() for loss in losses) / 2]
        )

    def test_gradients_that_are_dropped_take_their_losses_with_them(self) -> None:
        engine = self.engine(tower())
        engine.backward(loss_of(engine, torch.Generator().manual_seed(3)))
        engine.zero_grad()
        losses = self.train(engine, torch.Generator().manual_seed(1), 1)
        self.assertEqual([row["loss"] for row in self.rows()], [sum(losses) / 2])

    def test_two_losses_that_are_not_finite_end_the_training_behind_its_last_good_commit(
        self,
    ) -> None:
        engine = self.engine(tower(), config=self.config(gradient_accumulation_steps=1))
        generator = torch.Generator().manual_seed(1)
        for tag in ("one", "two"):
            self.train(engine, generator, 1)
            engine.save_checkpoint(self.folder, tag)
        for skipped in (1, 2):
            engine.backward(loss_of(engine, generator) * math.nan)
            with self.assertWarnsRegex(UserWarning, "was skipped: the loss of step"):
                engine.step()
            self.assertEqual(engine.skipped_steps, skipped)
        with self.assertRaisesRegex(penstock.NumericError, "no loss after the commit of step 2"):
            engine.save_checkpoint(self.folder, "three")
        with self.assertRaisesRegex(penstock.NumericError, "losses of 2 steps in a row"):
            loss_of(engine, generator)
        with self.assertLogs("penstock", "WARNING"):
            engine.destroy()
        again = self.engine(tower(), config=self.config(gradient_accumulation_steps=1))
        again.load_checkpoint(self.folder, "two")
        self.assertEqual(again.optimizer.steps, 2)

    def test_arguments_name_the_configuration(self) -> None:
        path = os.path.join(self.folder, "ds.json")
        with open(path, "w") as file:
            json.dump(self.config(), file)
        parser = deepspeed.add_config_arguments(argparse.ArgumentParser())
        args = parser.parse_args(["--deepspeed", "--deepspeed_config", path])
        data = [(torch.tensor([float(i)]),) for i in range(8)]
        engine, _, loader, scheduler = deepspeed.initialize(
            args=args, model=tower(), training_data=data
        )
        self.addCleanup(engine.destroy)
        self.assertEqual(len(loader), 2)
        self.assertIsNone(scheduler)

    def test_bf16_makes_the_module_bf16(self) -> None:
        engine = self.engine(tower(), config=self.config(bf16={"enabled": True}))
        self.assertEqual(next(engine.parameters()).dtype, torch.bfloat16)
        self.train(engine, torch.Generator().manual_seed(1), 1)


if __name__ == "__main__":
    unittest.main()
