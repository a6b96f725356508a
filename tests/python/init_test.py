"""penstock.init: modules without memory for weights, which get them unit by unit."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
import tempfile
import textwrap
import unittest

import penstock
import tiny_models
import torch

CPU = {"device": "cpu"}
HOST = {"zero_optimization": {"stage": 3, "offload_param": CPU, "offload_optimizer": CPU}}


def weights_of(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    with penstock.gathered(model):
        return {name: parameter.clone() for name, parameter in model.named_parameters()}


class InitTest(unittest.TestCase):
    def setUp(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def begin(self, model: torch.nn.Module, **options: object) -> torch.optim.Optimizer:
        run = pathlib.Path(
            self.folder.name, str(len(list(pathlib.Path(self.folder.name).iterdir())))
        )
        _, optimizer = penstock.initialize(model, HOST, run=run, **options)
        self.addCleanup(optimizer.close)
        return optimizer

    def test_parameters_take_no_memory_and_buffers_keep_their_values(self) -> None:
        with penstock.init():
            model = tiny_models.make("llama")
        self.assertTrue(all(p.device.type == "meta" for p in model.parameters()))
        ordinary = dict(tiny_models.make("llama").named_buffers())
        for name, buffer in model.named_buffers():
            self.assertTrue(torch.equal(buffer, ordinary[name]), name)
        self.assertEqual(torch.nn.Linear(2, 2).weight.device.type, "cpu")

    def test_streamed_files_give_the_weights_that_they_hold(self) -> None:
        for kind in ("gpt2", "llama", "t5", "vit", "mixtral"):
            saved = pathlib.Path(self.folder.name, kind)
            original = tiny_models.make(kind)
            # Else under the names that older versions of transformers had.
            original.save_pretrained(saved, save_original_format=False)
            with penstock.init():
                model = tiny_models.make(kind)
            self.begin(model, weights=saved)
            found = weights_of(model)
            for name, parameter in original.named_parameters():
                self.assertTrue(torch.equal(found[name], parameter), (kind, name))

    def test_random_weights_are_those_of_the_initializers(self) -> None:
        with penstock.init():
            model = tiny_models.make("gpt2")
        torch.manual_seed(5)
        self.begin(model, weights="random")
        ordinary = tiny_models.make("gpt2")
        for name, values in weights_of(model).items():
            expected = dict(ordinary.named_parameters())[name]
            self.assertLess(abs(float(values.std() - expected.std())), 0.01, name)
            self.assertLess(abs(float(values.mean() - expected.mean())), 0.02, name)

    def test_what_from_pretrained_loads_within_init_is_trained(self) -> None:
        import transformers

        saved = pathlib.Path(self.folder.name, "saved")
        original = tiny_models.make("llama")
        original.save_pretrained(saved)
        with penstock.init():
            model = transformers.AutoModelForCausalLM.from_pretrained(saved)
        self.begin(model)
        found = weights_of(model)
        for name, parameter in original.named_parameters():
            self.assertTrue(torch.equal(found[name], parameter), name)

    def test_random_weights_are_drawn_only_for_what_was_not_loaded(self) -> None:
        with penstock.init():
            model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
            model[0].weight = torch.nn.Parameter(torch.full((4, 4), 3.0))
        self.begin(model, weights="random")
        found = weights_of(model)
        self.assertTrue(found["0.weight"].eq(3).all())
        for name in ("0.bias", "1.weight", "1.bias"):
            self.assertTrue(found[name].ne(0).all(), name)

    def test_a_module_without_values_is_refused_with_what_to_give(self) -> None:
        with penstock.init():
            model = tiny_models.make("gpt2")
        with self.assertRaisesRegex(penstock.InvalidArgumentError, 'weights= .*"random"'):
            self.begin(model)

    def test_files_of_another_model_are_refused_by_name_and_shape(self) -> None:
        saved = pathlib.Path(self.folder.name, "saved")
        tiny_models.make("llama").save_pretrained(saved)
        with penstock.init():
            model = tiny_models.make("gpt2")
        with self.assertRaisesRegex(penstock.InvalidArgumentError, "lacks .*wpe.weight"):
            self.begin(model, weights=saved)
        with self.assertRaisesRegex(penstock.NotFoundError, "no safetensors files"):
            self.begin(tiny_models.make("gpt2"), weights=pathlib.Path(self.folder.name, "nothing"))

    def test_parameters_that_nothing_initializes_are_named(self) -> None:
        class Bare(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.scale = torch.nn.Parameter(torch.ones(3))
                self.linear = torch.nn.Linear(3, 3)

        with penstock.init():
            model = Bare()
        with self.assertRaisesRegex(penstock.InvalidArgumentError, "initializes scale"):
            self.begin(model, weights="random")


class MemoryTest(unittest.TestCase):
    """A module whose weights alone are far above what the process may take beside its import."""

    PROGRAM = textwrap.dedent(
        """
        import json, pathlib, sys
        import torch, torch._dynamo, penstock

        def peak():
            status = pathlib.Path("/proc/self/status").read_text()
            return int(status.split("VmHWM:")[1].split()[0]) * 1024

        torch.set_num_threads(1)
        torch.ones(4, 4) @ torch.ones(4, 4)
        folder, before = sys.argv[1], peak()
        with penstock.init():
            model = torch.nn.Sequential(
                *[torch.nn.Sequential(torch.nn.Linear(1024, 1024)) for _ in range(48)]
            )
        nvme = {"device": "nvme", "nvme_path": folder}
        config = {
            "zero_optimization": {"stage": 3, "offload_param": nvme, "offload_optimizer": nvme},
            "bf16": {"enabled": False},
            "penstock": {"host_memory": "288MiB"},
        }
        model, optimizer = penstock.initialize(model, config, weights="random")
        filled = peak()
        for _ in range(2):
            model(torch.ones(1, 1024)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        optimizer.close()
        weights = 48 * 4 * 1024 * 1025
        print(json.dumps({"filled": filled - before, "peak": peak() - before, "weights": weights}))
        """
    )

    def test_neither_making_nor_training_takes_the_memory_of_the_weights_and_states(self) -> None:
        with tempfile.TemporaryDirectory(dir=".") as folder:
            done = subprocess.run(
                [sys.executable, "-c", self.PROGRAM, folder], capture_output=True, text=True
            )
        self.assertEqual(done.returncode, 0, done.stderr)
        memory = json.loads(done.stdout)
        # Gradients of all weights stay in host memory; weights and two moments are thrice that.
        self.assertLess(memory["peak"], (288 + 48) << 20)
        self.assertGreater(3 * memory["weights"], 1.6 * memory["peak"])


if __name__ == "__main__":
    unittest.main()
