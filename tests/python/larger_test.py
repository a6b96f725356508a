"""Modules whose weights do not fit the GPU that they compute on, on the fake driver."""

from __future__ import annotations

import contextlib
import ctypes
import os
import pathlib
import re
import sys
import tempfile
import unittest
import warnings
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import cuda_support
import hf_support as support
import matrix
import penstock
import penstock.compat.deepspeed as deepspeed
import tiny_models
import torch
import transformers
from penstock.integrations.hf import Trainer

_CUDA = torch.device("cuda", 0)
_LAYERS = 20
_STEPS = 3
_driver: ctypes.CDLL


def setUpModule() -> None:
    global _driver
    _driver = cuda_support.load_driver()
    warnings.simplefilter("ignore", FutureWarning)  # of transformers
    torch.set_num_threads(1)


def config() -> transformers.LlamaConfig:
    return transformers.LlamaConfig(**{**tiny_models._DECODER, "num_hidden_layers": _LAYERS})


def llama() -> Any:
    torch.manual_seed(1)
    return transformers.LlamaForCausalLM(config()).train()


def bytes_of(model: torch.nn.Module) -> int:
    return sum(parameter.nbytes for parameter in model.parameters())


class Counts(torch.nn.Module):
    """Has buffers of all kinds: statistics that a forward writes, a mask, one that is tied."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(tiny_models.VOCABULARY, 8)
        self.blocks = torch.nn.ModuleList([torch.nn.Linear(8, 8) for _ in range(3)])
        self.norm = torch.nn.BatchNorm1d(8)
        self.register_buffer("mask", torch.arange(8) < 6, persistent=False)
        self.norm.register_buffer("mask", self.mask, persistent=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids).flatten(0, 1)
        for block in self.blocks:
            x = x + torch.relu(block(x))
        return self.norm(x)[:, self.mask].square().mean()


class LargerTest(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.optimizers: list[Any] = []
        self.addCleanup(self.close)
        self.assertEqual(_driver.fake_cuda_violations(), b"")

    def path(self, name: str) -> str:
        return os.path.join(self.folder, name)

    def begin(self, model: Any, home: str = "host", run: str = "run", **options: Any) -> Any:
        settings = matrix.config(home, self.folder, options.pop("sums", 1))
        settings["penstock"].update(options.pop("more", {}))
        _, optimizer = penstock.initialize(model, settings, run=self.path(run), **options)
        self.optimizers.append(optimizer)
        return optimizer

    def close(self) -> None:
        for optimizer in self.optimizers:
            optimizer.close()

    @contextlib.contextmanager
    def gpus(self, size: int = 1 << 40, count: int = 1) -> Iterator[cuda_support.Gpus]:
        with cuda_support.gpus(_driver, size, count) as found:
            try:
                yield found
            finally:
                self.close()

    def assert_clean(self) -> None:
        self.assertEqual(_driver.fake_cuda_violations().decode(), "")

    def train(
        self, model: Any, optimizer: Any, device: Any = "cpu", steps: int = _STEPS
    ) -> list[torch.Tensor]:
        losses = []
        for number in range(optimizer.steps, optimizer.steps + steps):
            batch = tiny_models.batch("llama", number)
            loss = model(**{name: values.to(device) for name, values in batch.items()}).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.detach())
        return losses

    def on_cpu(self, home: str = "host") -> tuple[list[torch.Tensor], dict[str, torch.Tensor]]:
        model = llama()
        optimizer = self.begin(model, home, "on the cpu")
        losses = self.train(model, optimizer)
        weights = model.state_dict()
        optimizer.close()
        return losses, weights

    def assert_weights(self, expected: Any, model: Any) -> None:
        weights = model.state_dict()
        self.assertEqual(expected.keys(), weights.keys())
        for name, weight in expected.items():
            self.assertTrue(torch.equal(weight, weights[name]), name)

    def refuse(self, call: Callable[[], Any], *parts: str) -> str:
        with self.assertRaises(penstock.PenstockError) as caught:
            call()
        line = str(caught.exception)
        self.assertNotIn("\n", line)
        for part in parts:
            self.assertIn(part, line)
        return line


class Budget(LargerTest):
    """The weights are four times what the driver says that the device has."""

    def made(self, how: str) -> tuple[Any, dict[str, Any]]:
        if how == "cpu":
            return llama(), {}
        saved = self.path("saved")
        llama().save_pretrained(saved)
        with penstock.init():
            return transformers.LlamaForCausalLM(config()).train(), {"weights": saved}

    def test_it_trains_with_the_bits_of_the_cpu_and_its_peak_within_the_budget(self) -> None:
        expected, weights = self.on_cpu()
        budget = bytes_of(llama()) // 4
        for how, home, checkpoint in (("cpu", "host", False), ("init", "nvme", True)):
            with self.subTest(how=how, home=home):
                model, options = self.made(how)
                if checkpoint:
                    model.gradient_checkpointing_enable({"use_reentrant": False})
                with self.gpus(budget):
                    optimizer = self.begin(model, home, how, device="cuda", **options)
                    self.assertEqual({p.device for p in model.parameters()}, {_CUDA})
                    self.assertEqual({b.device for b in model.buffers()}, {_CUDA})
                    losses = self.train(model, optimizer, "cuda")
                    self.assert_weights(weights, model)
                    optimizer.close()
                    peak = _driver.fake_cuda_peak()
                self.assertTrue(all(map(torch.equal, expected, losses)))
                self.assertLessEqual(peak, budget)
                self.assertGreater(peak, budget // 4)
                self.assert_clean()

    def test_the_smallest_budget_that_a_refusal_names_works(self) -> None:
        model = llama()
        with self.gpus(10_000):
            line = self.refuse(
                lambda: self.begin(model, device="cuda"), "10000 are free", "2 blocks of 49152"
            )
        found = re.search(r"with (\d+) bytes free", line)
        assert found is not None
        least = int(found[1])
        with self.gpus(least - 1):
            self.refuse(lambda: self.begin(model, device="cuda"), f"{least - 1} are free")
        self.assertEqual({p.device.type for p in model.parameters()}, {"cpu"})
        with self.gpus(least):
            optimizer = self.begin(model, device="cuda")
            self.train(model, optimizer, "cuda")
            optimizer.close()

    def test_device_memory_of_the_configuration_gives_more_places_or_is_refused(self) -> None:
        with self.gpus():
            self.refuse(
                lambda: self.begin(llama(), device="cuda", more={"device_memory": 9000}),
                "penstock.device_memory is 9000; raise it to ",
            )
            model = llama()
            optimizer = self.begin(model, device="cuda", more={"device_memory": "256KiB"})
            self.train(model, optimizer, "cuda")
            self.assertGreater(optimizer.hooks.runtime.most_repeated, 3)
            optimizer.close()
            self.assertLessEqual(_driver.fake_cuda_peak(), 256 << 10)

    def test_sums_of_micro_batches_are_there_only_where_they_fit_beside_the_weights(self) -> None:
        model = llama()
        sums = bytes_of(model)  # of weights in fp32
        for budget, place, fits in (
            (8 * sums, "auto", True),
            (sums // 4, "auto", False),
            (sums // 4, "host", False),
            (4 * sums, "device", True),
        ):
            with self.subTest(budget=budget, place=place), self.gpus(budget):
                model = llama()
                more = {"gradient_sums": place}
                optimizer = self.begin(
                    model, run=f"{budget} {place}", device="cuda", sums=2, more=more
                )
                there = optimizer.describe()["sums_on_device"]
                self.assertEqual(there, fits)
                self.assertEqual(_driver.fake_cuda_peak() > sums, fits)
        with self.gpus(sums):
            more = {"gradient_sums": "device"}
            self.refuse(
                lambda: self.begin(llama(), device="cuda", sums=2, more=more),
                f"sums of micro-batches {sums}",
            )

    def test_all_weights_on_the_device_have_to_fit_it(self) -> None:
        with self.gpus(bytes_of(llama()) // 2):
            self.refuse(lambda: self.begin(llama(), "device", device="cuda"), "offload its weights")

    def test_reading_all_weights_takes_no_memory_of_the_device(self) -> None:
        model = llama()
        with self.gpus(bytes_of(model) // 4):
            optimizer = self.begin(model, device="cuda")
            self.train(model, optimizer, "cuda", 1)
            kept = model.state_dict()
            self.assertEqual({kept[n].device.type for n, _ in model.named_parameters()}, {"cpu"})
            before = _driver.fake_cuda_peak()
            with penstock.gathered(model):
                for name, parameter in model.named_parameters():
                    self.assertEqual(parameter.device.type, "cpu")
                    self.assertTrue(torch.equal(parameter, kept[name]))
                batch = tiny_models.batch("llama", 0)
                self.refuse(lambda: model(**batch), "within penstock.gathered of several units")
            model.save_pretrained(self.path("saved"))
            self.assertLessEqual(_driver.fake_cuda_peak(), before)
            with penstock.gathered(model.model.norm):  # one unit: for who computes with it
                self.assertEqual(model.model.norm.weight.device, _CUDA)
            optimizer.close()
        self.assert_clean()
        again = transformers.LlamaForCausalLM.from_pretrained(self.path("saved"))
        for name, parameter in again.named_parameters():
            self.assertTrue(torch.equal(parameter, kept[name]), name)

    def test_evaluation_and_generation_work_between_steps(self) -> None:
        ids = torch.arange(3, 7)[None]
        options = {"max_new_tokens": 4, "use_cache": True, "do_sample": False}

        def run(model: Any, optimizer: Any, device: str) -> Any:
            found = []
            for _ in range(2):
                self.train(model, optimizer, device, 1)
                model.eval()
                with torch.no_grad():
                    found.append(model(input_ids=ids.to(device)).logits)
                with torch.inference_mode():
                    found.append(model(input_ids=ids.to(device)).logits)
                found.append(model.generate(ids.to(device), **options))
                model.train()
            return found

        model = llama()
        expected = run(model, self.begin(model, run="cpu"), "cpu")
        model = llama()
        budget = bytes_of(model) // 4
        with self.gpus(budget):
            optimizer = self.begin(model, device="cuda")
            found = run(model, optimizer, "cuda")
            optimizer.close()
            self.assertLessEqual(_driver.fake_cuda_peak(), budget)
        self.assertTrue(all(map(torch.equal, expected, found)))
        self.assert_clean()

    def test_a_commit_is_continued_on_either_device(self) -> None:
        expected, weights = self.on_cpu()
        budget = bytes_of(llama()) // 4
        with self.gpus(budget):
            model = llama()
            optimizer = self.begin(model, device="cuda")
            losses = self.train(model, optimizer, "cuda", 1)
            said, streams = optimizer.state_dict(), optimizer.hooks.runtime.engine.streams
            said["penstock"]["snapshot"] = optimizer.snapshot(self.path("snapshot"))
            self.train(model, optimizer, "cuda", 1)
            optimizer.load_state_dict(said)  # goes back, with another engine
            self.assertEqual(optimizer.steps, 1)
            self.assertIs(
                optimizer.hooks.runtime.engine.streams, streams
            )  # whose order memory follows
            losses += self.train(model, optimizer, "cuda", 1)
            optimizer.commit()
            optimizer.close()
            run = optimizer._run.folder
            with penstock.init():
                model = transformers.LlamaForCausalLM(config()).train()
            optimizer = self.begin(model, run=str(run), device="cuda", weights="random")
            self.assertTrue(optimizer.continued)
            losses += self.train(model, optimizer, "cuda", 1)
            self.assert_weights(weights, model)
            optimizer.commit()
            optimizer.close()
            self.assertLessEqual(_driver.fake_cuda_peak(), budget)
        self.assertTrue(all(map(torch.equal, expected, losses)))
        model = llama()
        self.assertTrue(self.begin(model, run=str(run)).continued)
        self.assert_weights(weights, model)
        self.assert_clean()

    def test_a_universal_checkpoint_comes_to_the_device_unit_by_unit(self) -> None:
        expected, weights = self.on_cpu()
        model = llama()
        optimizer = self.begin(model)
        losses = self.train(model, optimizer, steps=1)
        penstock.universal.save(optimizer, self.path("universal"))
        optimizer.close()
        budget = bytes_of(model) // 4
        with self.gpus(budget):
            with penstock.init():
                model = transformers.LlamaForCausalLM(config()).train()
            states = penstock.universal.Reader(self.path("universal"))
            optimizer = self.begin(model, run="other", device="cuda", weights=states)
            self.assertEqual({p.device for p in model.parameters()}, {_CUDA})
            losses += self.train(model, optimizer, "cuda", 2)
            self.assert_weights(weights, model)
            optimizer.close()
            self.assertLessEqual(_driver.fake_cuda_peak(), budget)
        self.assertTrue(all(map(torch.equal, expected, losses)))


class Devices(LargerTest):
    def test_buffers_live_on_the_device_and_keep_their_values_and_ties(self) -> None:
        ids = tiny_models.batch("odd", 0)["ids"]

        def run(device: Any) -> tuple[Any, Any]:
            torch.manual_seed(0)
            model = Counts()
            optimizer = self.begin(model, run=str(device), device=device)
            for _ in range(_STEPS):
                model(ids.to(device)).backward()
                optimizer.step()
            return model, {n: b.clone() for n, b in model.named_buffers(remove_duplicate=False)}

        _, expected = run("cpu")
        with self.gpus():
            model, found = run("cuda")
            self.assertEqual({b.device for b in model.buffers()}, {_CUDA})
            self.assertIs(model.mask, model.norm.mask)
        for name, values in expected.items():
            self.assertTrue(torch.equal(values, found[name]), name)
        self.assertEqual(int(found["norm.num_batches_tracked"]), _STEPS)

    def test_streamed_weights_bring_the_buffers_that_the_files_have(self) -> None:
        from safetensors.torch import save_file

        model = Counts()
        model.norm.running_mean.fill_(3.0)
        file = self.path("model.safetensors")
        save_file(dict(model.state_dict()), file)
        for context, device in ((penstock.init(), None), (torch.device("meta"), "cpu")):
            with context:
                made = Counts()
            if device is not None:  # the mask is in no file
                self.refuse(
                    lambda made=made: self.begin(made, weights=file, run="meta"),
                    "buffer mask has no values",
                    "penstock.init()",
                )
                made.mask = made.norm.mask = model.mask
            self.begin(made, weights=file, run=f"of {device}")
            self.assertEqual(made.norm.running_mean.tolist(), [3.0] * 8)
            self.assertEqual({b.device.type for b in made.buffers()}, {"cpu"})

    def test_the_second_device_is_current_where_copies_are_enqueued(self) -> None:
        expected, _ = self.on_cpu()
        with self.gpus(count=2) as gpus:
            for device in (1, torch.device("cuda", 1)):
                model = llama()
                optimizer = self.begin(model, run=f"run {device!r}", device=device)
                self.assertEqual({p.device.index for p in model.parameters()}, {1})
                losses = self.train(model, optimizer, "cuda:1", 2)
                self.assertTrue(all(map(torch.equal, expected, losses)))
                optimizer.close()
                self.assertEqual(gpus.current(), 0)
        self.assert_clean()

    def test_a_module_made_for_the_device_needs_no_name_of_it(self) -> None:
        with self.gpus():
            with torch.device("cuda"), penstock.init():
                model = llama()
            model.to("cuda").cuda()
            self.begin(model, weights="random")
            self.assertEqual({p.device for p in model.parameters()}, {_CUDA})
            with penstock.init():
                model = llama()
            self.begin(model, run="cpu", weights="random")
            self.assertEqual({p.device.type for p in model.parameters()}, {"cpu"})

    def test_a_module_that_is_on_the_device_gives_its_memory_back(self) -> None:
        expected, weights = self.on_cpu()
        model = llama()
        with self.gpus(2 * bytes_of(model)) as gpus:
            model.to("cuda")
            taken = gpus.free(_CUDA)[0]
            optimizer = self.begin(model)
            losses = self.train(model, optimizer, "cuda")
            self.assertGreater(gpus.free(_CUDA)[0] - taken, bytes_of(model) // 2)
            self.assert_weights(weights, model)
            optimizer.close()
        self.assertTrue(all(map(torch.equal, expected, losses)))

    def test_a_training_that_was_closed_keeps_no_sums_on_the_device(self) -> None:
        model = llama().to(torch.bfloat16)
        with self.gpus() as gpus:
            more = {"gradient_sums": "device"}
            optimizer = self.begin(model, device="cuda", sums=2, more=more)
            self.train(model, optimizer, "cuda", 1)
            held = gpus.free(_CUDA)[0]
            optimizer.close()
            self.assertGreater(gpus.free(_CUDA)[0] - held, bytes_of(model))  # they are fp32

    def test_moving_a_module_is_refused_by_what_to_type_unless_it_is_there(self) -> None:
        for moved in (lambda m: m.to("cuda"), lambda m: m.cuda(), lambda m: m.to(_CUDA)):
            with penstock.init():
                model = llama()
            self.refuse(
                lambda model=model, moved=moved: moved(model), "penstock.initialize(model", "cuda"
            )
            model.to("cpu").to(torch.bfloat16).cpu()
            self.assertEqual({p.dtype for p in model.parameters()}, {torch.bfloat16})
        with self.gpus(count=2):
            model = llama()
            self.begin(model, device="cuda")
            model.to("cuda").cuda().to(_CUDA)
            self.refuse(lambda: model.to("cpu"), "penstock.initialize(…, device=…)")
            self.refuse(lambda: model.cuda(1), "penstock.initialize(…, device=…)")

    def test_modules_that_copy_their_parts_know_the_device_they_were_made_for(self) -> None:
        with penstock.init():
            layer = torch.nn.TransformerEncoderLayer(8, 2, 8, batch_first=True)
            model = torch.nn.TransformerEncoder(layer, 3)
        self.refuse(lambda: model.to("cuda"), "penstock.initialize(model")
        weight = model.layers[0].linear1.weight
        self.assertIs(type(type(weight)(torch.zeros(2))), torch.nn.Parameter)  # as others make one

    def test_modules_that_list_their_weights_see_those_that_are_given(self) -> None:
        with penstock.init():
            model = torch.nn.LSTM(4, 4, batch_first=True)
        optimizer = self.begin(model, weights="random")
        model(torch.ones(1, 2, 4))[0].sum().backward()
        optimizer.step()

    def test_devices_that_are_none_and_modules_on_several_are_refused(self) -> None:
        model = torch.nn.Linear(2, 2)
        self.refuse(lambda: self.begin(model, device="cuda"), "torch finds 0 CUDA devices")
        for device in ("gpu", 1.5):
            self.refuse(lambda device=device: self.begin(model, device=device), "torch.device")
        self.refuse(lambda: self.begin(model, device="mps"), "the CPU or on a CUDA device")
        with self.gpus():
            self.refuse(lambda: self.begin(model, device="cuda:1"), "torch finds 1 CUDA devices")
            mixed = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2).to("cuda"))
            for device in (None, "cuda"):
                self.refuse(
                    lambda device=device: self.begin(mixed, device=device),
                    "parameters are on cpu, cuda:0; move them to one device",
                )


class Loops(LargerTest):
    """Loops other than the Trainer leave the module where it is."""

    def trained_by_the_trainer(self, name: str) -> tuple[list[float], float, float]:
        trainer = support.quiet(
            Trainer(
                model=llama(),
                args=transformers.TrainingArguments(
                    output_dir=self.path(name),
                    max_steps=_STEPS,
                    logging_steps=1,
                    per_device_train_batch_size=2,
                    save_strategy="no",
                    report_to=[],
                    disable_tqdm=True,
                    use_cpu=True,
                ),
                train_dataset=support.Rows(),
                eval_dataset=support.Rows(4),
                penstock_config={
                    "zero_optimization": matrix.config("host", "")["zero_optimization"]
                },
            )
        )
        before = trainer.evaluate()["eval_loss"]
        trainer.train()
        after = trainer.evaluate()["eval_loss"]
        trainer.save_model(self.path(f"{name} saved"))
        trainer.close()
        return support.losses(trainer), before, after

    def test_the_trainer_trains_and_evaluates_within_the_budget(self) -> None:
        expected = self.trained_by_the_trainer("cpu")
        budget = bytes_of(llama()) // 4
        device = mock.patch.object(
            transformers.TrainingArguments,
            "device",
            property(lambda arguments: (arguments._setup_devices, _CUDA)[1]),
        )
        with self.gpus(budget), device:
            found = self.trained_by_the_trainer("cuda")
            self.assertLessEqual(_driver.fake_cuda_peak(), budget)
        self.assertEqual(found, expected)
        self.assertLess(expected[2], expected[1])
        self.assert_clean()

    def test_deepspeeds_interface_computes_where_deepspeed_would(self) -> None:
        zero = matrix.config("nvme", self.folder)["zero_optimization"]
        config = {"train_micro_batch_size_per_gpu": 2, "zero_optimization": zero}
        with self.gpus(bytes_of(llama()) // 4):
            engine, optimizer, *_ = deepspeed.initialize(model=llama(), config=config)
            self.optimizers.append(optimizer)
            self.assertEqual(engine.device, _CUDA)
            batch = tiny_models.batch("llama", 0)
            engine.backward(engine(**{k: v.to(engine.device) for k, v in batch.items()}).loss)
            engine.step()
        self.assert_clean()


if __name__ == "__main__":
    unittest.main()
