"""Both levels with weights and gradients on a device, on the fake driver: the same bits."""

from __future__ import annotations

import contextlib
import ctypes
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import unittest
import warnings
from collections.abc import Iterator
from typing import Any
from unittest import mock

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import cuda_support
import matrix
import optimizer_support as support
import penstock
import tiny_models
import torch
from penstock import _cuda

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


@contextlib.contextmanager
def engines_on(machine: str) -> Iterator[list[Any]]:
    """What engines that are made meanwhile describe; they see a machine in hwloc's notation."""
    described: list[Any] = []
    engine_for = _cuda.engine_for

    def make(*arguments: Any) -> Any:
        engine = engine_for(*arguments)
        described.append(engine.describe())
        return engine

    environment = {"HWLOC_SYNTHETIC": machine, "HWLOC_THISSYSTEM": "0"}
    with mock.patch.dict(os.environ, environment), mock.patch.object(_cuda, "engine_for", make):
        yield described


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

    def test_all_cores_of_a_gpus_host_update_but_one(self) -> None:
        for machine, threads in (("pack:1 core:16 pu:1", 15), ("pack:1 core:8 pu:2", 7)):
            with engines_on(machine) as engines, cuda_support.on_the_gpu(_driver):
                tower = support.tower()
                optimizer = self.make(tower.parameters(), where="host")
                support.train(tower, optimizer, 1)
                optimizer.close()
                settings = matrix.config("host", self.folder, 1, "fp32")
                model = tiny_models.make("odd", torch.float32, None)
                run = os.path.join(self.folder, f"run-{threads}")
                penstock.initialize(model, settings, run=run)[1].close()
            found = [engine["optimizer_threads"] for engine in engines]
            if any("cgroups leave" in line for engine in engines for line in engine["notices"]):
                self.skipTest("a container's quota limits the threads")
            self.assertEqual(found, [threads, threads])

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

    def train(
        self, gpu: bool, cell: matrix.Cell, sums: str = "auto"
    ) -> tuple[list[torch.Tensor], Any]:
        model: Any = tiny_models.make(cell.model, matrix.DTYPES[cell.dtype], None)
        with tempfile.TemporaryDirectory() as folder:
            settings = matrix.config(cell.home, folder, cell.micro_batches, cell.dtype)
            settings["penstock"]["gradient_sums"] = sums
            before = self.copies()
            run = os.path.join(folder, "run")
            model, optimizer = penstock.initialize(model, settings, run=run)
            try:
                on_device = optimizer.describe()["sums_on_device"]
                self.assertEqual(on_device, gpu and sums == "device" and cell.micro_batches > 1)
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
            # The second step has fewer backwards than it may have.
            if (number + 1) % cell.micro_batches == 0 or number == cell.micro_batches + 1:
                optimizer.step()
                optimizer.zero_grad()
        return losses

    def assert_equal(self, cell: matrix.Cell, sums: str = "auto") -> None:
        losses, weights = self.train(False, cell)
        with cuda_support.on_the_gpu(_driver):
            on_gpu, found = self.train(True, cell, sums)
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

    def test_the_host_waits_for_gradients_of_which_many_bytes_are_under_way(self) -> None:
        limit = 20_000
        sizes: list[int] = []  # of copies in their order
        over = 0  # how many of them the host has waited for
        peak = 0

        def record(stream: Any) -> Any:
            behind = len(sizes)

            def wait() -> None:
                nonlocal over
                over = max(over, behind)

            return mock.Mock(synchronize=wait)

        def keep(engine: Any, values: torch.Tensor) -> None:
            nonlocal peak
            kept(engine, values)
            sizes.append(values.nbytes)
            peak = max(peak, sum(sizes[over:]))

        kept = _cuda.CudaEngine.keep
        cell = matrix.Cell("llama", "none", 1, "host", "fp32")
        losses, _ = self.train(False, cell)
        with cuda_support.on_the_gpu(_driver), mock.patch.object(_cuda, "_AHEAD", limit):
            with (
                mock.patch.object(_cuda.CudaEngine, "keep", keep),
                mock.patch.object(torch.cuda.Stream, "record_event", record),
            ):
                on_gpu, _ = self.train(True, cell)
            self.assert_clean()
        self.assertTrue(all(map(torch.equal, losses, on_gpu)))
        self.assertGreater(sum(sizes) // _STEPS, 3 * limit + max(sizes))
        self.assertLessEqual(peak, 2 * limit + max(sizes))
        self.assertGreater(peak, limit)

    def test_gradients_that_are_waited_for_have_the_bits_of_the_cpu(self) -> None:
        with mock.patch.object(_cuda, "_AHEAD", 1):
            self.assert_equal(matrix.Cell("odd", "none", 3, "host", "bf16"))

    def test_sums_of_micro_batches_on_either_side_have_the_bits_of_the_cpu(self) -> None:
        for model, home, dtype, sums in (
            ("llama", "host", "bf16", "device"),
            ("odd", "nvme", "bf16", "device"),
            ("gpt2", "host", "fp32", "device"),
            ("odd", "split", "fp32", "host"),
        ):
            cell = matrix.Cell(model, "none", 3, home, dtype)
            with self.subTest(str(cell), sums=sums):
                self.assert_equal(cell, sums)

    def settings(self, sums: str | None, folder: str) -> dict[str, Any]:
        settings = matrix.config("host", folder, 3, "bf16")
        if sums is not None:
            settings["penstock"]["gradient_sums"] = sums
        return settings

    def test_sums_are_on_the_device_where_they_take_at_most_a_quarter_of_what_is_free(self) -> None:
        elements = sum(
            p.numel() for p in tiny_models.make("odd", torch.bfloat16, None).parameters()
        )
        for sums, free, expected in (
            (None, 4 * 4 * elements, "device"),
            (None, 4 * 4 * elements - 4, "host"),
            ("device", 4 * 4 * elements - 4, "device"),
            ("host", 1 << 40, "host"),
        ):
            with (
                self.subTest(sums=sums, free=free),
                cuda_support.on_the_gpu(_driver, free),
                tempfile.TemporaryDirectory() as folder,
            ):
                model: Any = tiny_models.make("odd", torch.bfloat16, None)
                _, optimizer = penstock.initialize(
                    model, self.settings(sums, folder), run=os.path.join(folder, "run")
                )
                notices = [n for n in optimizer.hooks.runtime.notices if "are added up in" in n]
                self.assertEqual(len(notices), 1)
                self.assertIn(f"added up in {expected} memory", notices[0])
                optimizer.close()

    def test_a_sum_on_the_device_leaves_it_once_a_step(self) -> None:
        cell = matrix.Cell("odd", "none", 3, "device", "bf16")
        copies = {}
        for sums in ("host", "device"):
            with cuda_support.on_the_gpu(_driver):
                before = self.copies()
                self.train(True, cell, sums)
                copies[sums] = self.copies() - before
        tensors = len(list(tiny_models.make("odd", torch.bfloat16, None).parameters()))
        micro_batches = _STEPS * cell.micro_batches
        self.assertGreaterEqual(copies["host"] - copies["device"], tensors * (micro_batches - 4))

    def test_one_backward_too_many_is_refused_where_sums_are_on_the_device(self) -> None:
        with cuda_support.on_the_gpu(_driver), tempfile.TemporaryDirectory() as folder:
            model = tiny_models.make("odd", torch.bfloat16, None)
            _, optimizer = penstock.initialize(
                model, self.settings("device", folder), run=os.path.join(folder, "run")
            )
            batch = tiny_models.batch("odd", 0, torch.bfloat16)
            for _ in range(3):
                tiny_models.loss_of(model(**batch)).backward()
            with self.assertRaises(penstock.InvalidArgumentError) as caught:
                tiny_models.loss_of(model(**batch)).backward()
            self.assert_line(caught.exception, "gradient_accumulation_steps is 3")
            optimizer.zero_grad()
            for _ in range(3):
                tiny_models.loss_of(model(**batch)).backward()
            optimizer.step()
            optimizer.close()

    def test_an_unknown_place_of_sums_is_refused(self) -> None:
        model = tiny_models.make("odd", torch.bfloat16, None)
        with self.assertRaises(penstock.InvalidArgumentError) as caught:
            penstock.initialize(model, {"penstock": {"gradient_sums": "gpu"}}, run="unused")
        self.assert_line(caught.exception, "gradient_sums is 'gpu'", '"auto", "host" or "device"')

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
