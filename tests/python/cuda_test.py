"""Both levels with weights and gradients on a device, on the fake driver: the same bits."""

from __future__ import annotations

import ctypes
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import unittest
import warnings
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import cuda_support
import matrix
import optimizer_support as support
import penstock
import tiny_models
import torch

_STEPS = 3
_WITHOUT_WAITS = """
import unittest
from unittest import mock
import cuda_test
from penstock import _cuda
mock.patch.object(_cuda.CudaEngine, "ready", lambda self: None).start()
name = "ModuleOnTheGpu.test_all_on_nvme_trains_to_the_bits_of_the_cpu"
unittest.main(cuda_test, argv=["", name])
"""
_driver: ctypes.CDLL


def setUpModule() -> None:
    global _driver
    _driver = cuda_support.load_driver()


class CudaTest(support.OptimizerTest):
    def setUp(self) -> None:
        super().setUp()
        self.assertEqual(_driver.fake_cuda_violations(), b"")

    def copies(self) -> int:
        number: int = _driver.fake_cuda_copies()
        return number

    def assert_clean(self) -> None:
        """Nothing was noted, and nothing is registered any more."""
        self.assertEqual(_driver.fake_cuda_violations().decode(), "")
        self.assertEqual(_driver.fake_cuda_registered(), 0)


class OptimizerOnTheGpu(CudaTest):
    def train(self, gpu: bool, where: str, dtype: torch.dtype, late: bool) -> tuple[Any, Any]:
        model = support.tower(dtype)
        options: dict[str, Any] = {"model": model} if late else {}
        groups = support.decay_groups(model)
        optimizer = self.make(groups, where=where, **options)
        before = self.copies()
        losses = support.train(model, optimizer, _STEPS, clip=0.5)
        optimizer.synchronize()
        self.assertEqual(self.copies() > before, gpu)
        optimizer.close()
        return losses, model

    def test_trains_to_the_bits_of_the_cpu(self) -> None:
        for where, dtype, late in (
            ("host", torch.bfloat16, False),
            ("nvme", torch.float32, False),
            ("nvme", torch.bfloat16, True),
            ("split", torch.float32, True),
        ):
            with self.subTest(where=where, dtype=dtype, late=late):
                losses, expected = self.train(False, where, dtype, late)
                with cuda_support.on_the_gpu(_driver):
                    on_gpu, model = self.train(True, where, dtype, late)
                    self.assert_clean()
                self.assertEqual(losses, on_gpu)
                self.assert_same_weights(expected, model)

    def test_parameters_that_are_not_contiguous_get_their_weights(self) -> None:
        images = torch.randn(2, 3, 8, 8).to(memory_format=torch.channels_last)

        def train() -> torch.nn.Module:
            torch.manual_seed(0)
            model = torch.nn.Conv2d(3, 8, 3).to(memory_format=torch.channels_last)
            optimizer = self.make(model.parameters())
            for _ in range(_STEPS):
                model(images).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
            optimizer.close()
            self.assertFalse(model.weight.is_contiguous())
            return model

        expected = train()
        with cuda_support.on_the_gpu(_driver):
            self.assert_same_weights(expected, train())
            self.assert_clean()

    def test_a_commit_is_continued_with_its_weights(self) -> None:
        with cuda_support.on_the_gpu(_driver):
            run = os.path.join(self.folder, "run")
            model = support.tower()
            optimizer = self.make(model.parameters(), run=run)
            support.train(model, optimizer, 2)
            optimizer.commit()
            optimizer.close()
            again = support.tower()
            self.make(again.parameters(), run=run).close()
            self.assert_same_weights(model, again)
            self.assert_clean()

    def test_the_plan_has_the_room_in_which_gradients_arrive(self) -> None:
        model = support.tower()
        on_cpu = self.make(model.parameters()).plan()
        with cuda_support.on_the_gpu(_driver):
            on_gpu = self.make(model.parameters()).plan()
        self.assertEqual(on_cpu["host_bytes"]["arriving"], 0)
        self.assertGreater(on_gpu["host_bytes"]["arriving"], 0)

    def test_parameters_on_two_devices_are_refused(self) -> None:
        class Elsewhere(torch.nn.Parameter):
            @property
            def device(self) -> torch.device:  # type: ignore[override]
                return torch.device("cuda", 1)

        parameters = [torch.nn.Parameter(torch.zeros(3)), Elsewhere(torch.zeros(3))]
        with self.assertRaises(penstock.InvalidArgumentError) as caught:
            self.make(parameters)
        self.assert_line(caught.exception, "parameters are on cpu, cuda:1", "one device")


class ModuleOnTheGpu(CudaTest):
    def setUp(self) -> None:
        super().setUp()
        warnings.simplefilter("ignore", FutureWarning)  # of transformers

    def train(self, gpu: bool, cell: matrix.Cell) -> tuple[list[torch.Tensor], Any]:
        model = tiny_models.make(cell.model, matrix.DTYPES[cell.dtype], None)
        with tempfile.TemporaryDirectory() as folder:
            settings = matrix.config(cell.home, folder, cell.micro_batches, cell.dtype)
            before = self.copies()
            run = os.path.join(folder, "run")
            model, optimizer = penstock.initialize(model, settings, run=run)
            try:
                losses = self.steps(model, optimizer, cell)
                weights = {name: value.clone() for name, value in model.state_dict().items()}
            finally:
                optimizer.close()
            self.assertEqual(self.copies() > before, gpu)
        return losses, weights

    def steps(self, model: Any, optimizer: Any, cell: matrix.Cell) -> list[torch.Tensor]:
        losses = []
        for number in range(_STEPS * cell.micro_batches):
            torch.manual_seed(number)
            batch = tiny_models.batch(cell.model, number, matrix.DTYPES[cell.dtype])
            loss = tiny_models.loss_of(model(**batch))
            loss.backward()
            losses.append(loss.detach())
            if (number + 1) % cell.micro_batches == 0:
                optimizer.step()
                optimizer.zero_grad()
        return losses

    def assert_equal(self, cell: matrix.Cell) -> None:
        losses, weights = self.train(False, cell)
        with cuda_support.on_the_gpu(_driver):
            on_gpu, found = self.train(True, cell)
            self.assert_clean()
        self.assertTrue(all(torch.equal(a, b) for a, b in zip(losses, on_gpu)), cell)
        for name, weight in weights.items():
            self.assertTrue(torch.equal(weight, found[name]), name)

    def test_trains_to_the_bits_of_the_cpu(self) -> None:
        for model, home, micro_batches, dtype in (
            ("llama", "split", 3, "bf16"),
            ("odd", "host", 1, "fp32"),
            ("lora", "host", 1, "fp32"),
        ):
            cell = matrix.Cell(model, "none", micro_batches, home, dtype)
            with self.subTest(str(cell)):
                self.assert_equal(cell)

    def test_all_on_nvme_trains_to_the_bits_of_the_cpu(self) -> None:
        self.assert_equal(matrix.Cell("gpt2", "none", 1, "nvme", "fp32"))

    def test_without_its_wait_for_weights_it_computes_something_else(self) -> None:
        # In a process of its own: a copy that nobody waits for may reach memory that is gone.
        ended = subprocess.run(
            [sys.executable, "-c", _WITHOUT_WAITS],
            cwd=pathlib.Path(__file__).resolve().parent,
            capture_output=True,
            text=True,
            check=False,
        )
        if ended.returncode != -signal.SIGSEGV:
            self.assertEqual(ended.returncode, 1, ended.stderr)
            # Or the warning of a step that was skipped.
            self.assertRegex(ended.stderr, "AssertionError|UserWarning")


if __name__ == "__main__":
    unittest.main()
