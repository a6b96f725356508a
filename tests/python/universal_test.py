"""Universal checkpoints of DeepSpeed come in, go out, and come back with the same bytes."""

from __future__ import annotations

import json
import os
import pathlib
import resource
import unittest
from typing import Any

import optimizer_support as support
import penstock
import tiny_models
import torch
from optimizer_support import OptimizerTest, loss_of, tower, train
from penstock import universal
from penstock._universal_files import write

MOMENTS = ("exp_avg", "exp_avg_sq")


def write_as_deepspeed(folder: str, model: torch.nn.Module, steps: int, flat: bool = False) -> None:
    """Writes what DeepSpeed's converter writes: a mapping for each tensor, or flat with ZeRO-3."""
    generator = torch.Generator().manual_seed(11)
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        place = os.path.join(folder, "zero", name)
        os.makedirs(place)
        states = {
            "fp32": torch.randn(parameter.shape, generator=generator) * 0.02,
            "exp_avg": torch.randn(parameter.shape, generator=generator) * 1e-3,
            "exp_avg_sq": torch.rand(parameter.shape, generator=generator) * 1e-5,
        }
        for state, value in states.items():
            said: Any = value.flatten() if flat else {"cat_dim": 0, "param": value}
            torch.save(said, f"{place}/{state}.pt")
        torch.save(torch.tensor(float(steps)) if flat else steps, f"{place}/step.pt")


def read(folder: str) -> dict[str, torch.Tensor]:
    """Returns every tensor of a universal checkpoint, by parameter and state."""
    found = {}
    for path in sorted(pathlib.Path(folder).glob("zero/*/*.pt")):
        said = torch.load(path, weights_only=True)
        value = said["param"] if isinstance(said, dict) else torch.as_tensor(said)
        found[f"{path.parent.name}/{path.stem}"] = value
    return found


class Universal(OptimizerTest):
    def assert_same_checkpoints(self, one: str, other: str) -> None:
        first, second = read(one), read(other)
        self.assertEqual(first.keys(), second.keys())
        for name, value in first.items():
            if not name.endswith("/step"):
                self.assertEqual(value.dtype, second[name].dtype)
                value = value.reshape(second[name].shape)
                self.assertTrue(
                    torch.equal(value.view(torch.int32), second[name].view(torch.int32)), name
                )
            self.assertEqual(value.tolist(), second[name].tolist(), name)

    def path(self, name: str) -> str:
        return os.path.join(self.folder, name)

    def config(self, dtype: torch.dtype) -> dict[str, Any]:
        home = {"device": "nvme", "nvme_path": self.folder}
        return {
            "bf16": {"enabled": dtype == torch.bfloat16},
            "zero_optimization": {"stage": 3, "offload_optimizer": home, "offload_param": home},
            "penstock": {"tile_elements": support.TILE},
        }

    def test_round_trips_have_the_same_bytes_and_steps(self) -> None:
        for dtype in (torch.float32, torch.bfloat16):
            name = str(dtype)
            write_as_deepspeed(self.path(name), tower(dtype), 17, flat=dtype == torch.bfloat16)
            model = tower(dtype)
            optimizer = self.make(model.named_parameters())
            universal.load(optimizer, self.path(name))
            universal.save(optimizer, self.path(f"{name} by level 1"))
            self.assert_same_checkpoints(self.path(name), self.path(f"{name} by level 1"))
            module, other = penstock.initialize(tower(dtype), self.config(dtype))
            universal.load(other, self.path(f"{name} by level 1"))
            universal.save(other, self.path(f"{name} by level 2"))
            self.assert_same_checkpoints(self.path(name), self.path(f"{name} by level 2"))
            self.assertEqual((optimizer.updates, other.updates, other.steps), (17, 17, 17))
            for key, weight in module.state_dict().items():
                self.assertTrue(torch.equal(weight, model.state_dict()[key]), key)
            other.close()

    def test_training_resumes_with_the_same_bits(self) -> None:
        model, other = tower(), tower()
        optimizer = self.make(model.named_parameters())
        train(model, optimizer, steps=3)
        universal.save(optimizer, self.path("out"))
        expected = train(model, optimizer, steps=3, seed=2)
        goes_on = self.make(other.named_parameters(), where="host", model=other)
        universal.load(goes_on, self.path("out"))
        self.assertEqual(train(other, goes_on, steps=3, seed=2), expected)
        goes_on.synchronize()
        self.assert_same_weights(other, model)

    def frozen_in_part(self) -> torch.nn.Module:
        model = tower(torch.bfloat16)
        model.blocks[1].requires_grad_(False)
        model.blocks[0].up.requires_grad_(False)
        return model

    def test_frozen_weights_stay_those_of_the_module(self) -> None:
        model = self.frozen_in_part()
        frozen = {n: p.clone() for n, p in model.named_parameters() if not p.requires_grad}
        write_as_deepspeed(self.path("in"), model, 5)
        module, optimizer = penstock.initialize(model, self.config(torch.bfloat16))
        universal.load(optimizer, self.path("in"))
        universal.save(optimizer, self.path("out"))
        self.assert_same_checkpoints(self.path("in"), self.path("out"))
        state = module.state_dict()
        for name, weight in frozen.items():
            self.assertTrue(torch.equal(state[name], weight), name)
        optimizer.close()

    def test_the_command_imports_and_exports(self) -> None:
        model = tiny_models.make("llama")
        os.mkdir(self.path("model"))
        model.config.architectures = ["LlamaForCausalLM"]
        model.config.save_pretrained(self.path("model"))
        write_as_deepspeed(self.path("in"), model, 9)
        with open(self.path("ds.json"), "w") as file:
            json.dump(self.config(torch.float32), file)
        others = [self.path("model"), "--config", self.path("ds.json"), "--run", self.path("run")]
        self.assertEqual(universal.main(["import", self.path("in"), *others]), 0)
        self.assertEqual(universal.main(["export", self.path("out"), *others]), 0)
        self.assert_same_checkpoints(self.path("in"), self.path("out"))
        self.assertEqual(universal.main(["import", self.path("in"), *others]), 1)
        others[-1] = self.path("nothing")
        self.assertEqual(universal.main(["export", self.path("other"), *others]), 1)
        module, optimizer = penstock.initialize(
            tiny_models.make("llama"), self.config(torch.float32), run=self.path("run")
        )
        self.assertEqual(optimizer.steps, 9)
        loss = tiny_models.loss_of(module(**tiny_models.batch("llama", 1)))
        self.assertTrue(loss.isfinite())
        optimizer.close()

    def refused(self, folder: str, *parts: str, **options: Any) -> None:
        model = tower()
        optimizer = self.make(model.named_parameters())
        with self.assertRaises(penstock.PenstockError) as raised:
            universal.load(optimizer, self.path(folder), **options)
        self.assert_line(raised.exception, *parts)
        losses = train(model, optimizer, steps=1)  # it can still begin anew
        self.assertTrue(losses[0] > 0)

    def test_shards_of_ranks_are_refused_with_deepspeeds_converter(self) -> None:
        for number, file in enumerate(
            ("zero_pp_rank_0_mp_rank_00_optim_states.pt", "bf16_zero_pp_rank_0_optim_states.pt")
        ):
            folder = f"shards {number}"
            os.makedirs(self.path(f"{folder}/global_step7"))
            torch.save({}, self.path(f"{folder}/global_step7/{file}"))
            with open(self.path(f"{folder}/latest"), "w") as tag:
                tag.write("global_step7")
            self.refused(folder, "deepspeed.checkpoint.ds_to_universal", "global_step7")
        os.mkdir(self.path("empty"))
        self.refused("empty", "no universal checkpoint")

    def test_what_does_not_fit_is_named(self) -> None:
        write_as_deepspeed(self.path("in"), tower(), 3)
        zero = pathlib.Path(self.path("in/zero"))
        (zero / "norm.weight").rename(zero / "other.weight")
        self.refused("in", "lacks norm.weight")
        (zero / "other.weight").rename(zero / "norm.weight")
        (zero / "more").mkdir()
        self.refused("in", "has also more")
        (zero / "more").rmdir()
        torch.save(4, zero / "norm.bias" / "step.pt")
        self.refused("in", "3 steps of", "4 of norm.bias")
        torch.save({"param": torch.zeros(7)}, zero / "norm.bias" / "exp_avg.pt")
        torch.save(3, zero / "norm.bias" / "step.pt")
        self.refused("in", "norm.bias/exp_avg.pt has (7,)", "(48,)")
        (zero / "norm.bias" / "exp_avg.pt").write_bytes(b"damaged")
        self.refused("in", "norm.bias/exp_avg.pt cannot be read")

    def test_steps_that_are_not_said_are_asked_for(self) -> None:
        write_as_deepspeed(self.path("in"), tower(), 3)
        for file in pathlib.Path(self.path("in")).glob("zero/*/step.pt"):
            file.unlink()
        self.refused("in", "give steps=")
        optimizer = self.make(tower().named_parameters())
        universal.load(optimizer, self.path("in"), steps=8)
        self.assertEqual(optimizer.steps, 8)

    def test_what_cannot_be_written_is_a_line_with_the_path_and_leaves_nothing(self) -> None:
        out = self.path("out")
        large = torch.zeros(1 << 16)
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
            with self.assertRaises(penstock.PenstockError) as caught:  # within torch.save
                write(out, [("a", large, {"master": large})], 1, [])
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        self.assert_line(caught.exception, out, "File too large")
        self.assertEqual(os.listdir(out), [])
        model = tower()
        optimizer = self.make(model.parameters(), model=model)
        train(model, optimizer, 1)
        pathlib.Path(self.path("file")).touch()
        for folder in (self.path("file"), self.path("file/x"), self.path("x" * 300)):
            with self.subTest(folder=folder), self.assertRaises(penstock.PenstockError) as caught:
                universal.save(optimizer, folder)
            self.assert_line(caught.exception, "cannot be written", folder)
        for value in ("", 5, "a\0b"):
            with self.assertRaises(penstock.InvalidArgumentError) as caught:
                universal.save(optimizer, value)
            self.assert_line(caught.exception, "the folder of the checkpoint")
        universal.save(optimizer, out)
        self.assertEqual(os.listdir(out), ["zero"])

    def test_a_training_of_its_own_is_not_replaced(self) -> None:
        write_as_deepspeed(self.path("in"), tower(), 3)
        model = tower()
        optimizer = self.make(model.named_parameters())
        train(model, optimizer, steps=1)
        with self.assertRaisesRegex(penstock.InvalidArgumentError, "before the first step"):
            universal.load(optimizer, self.path("in"))
        module, other = penstock.initialize(tower(), self.config(torch.float32))
        loss_of(module, torch.Generator().manual_seed(1))
        with self.assertRaisesRegex(penstock.InvalidArgumentError, "after the module was used"):
            universal.load(other, self.path("in"))
        other.close()


if __name__ == "__main__":
    unittest.main()
