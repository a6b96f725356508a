"""States at home on the device, at both levels: the bits of every other home.

Runs on the fake driver, with the library whose kernels are compiled for the host
(tests/emulated_cuda).
"""

from __future__ import annotations

import ctypes
import os
import pathlib
import sys
import tempfile
import unittest
import warnings
from typing import Any
from unittest import mock

_HERE = pathlib.Path(__file__).resolve().parent
_BUILT = pathlib.Path("build/release/tests/emulated_cuda/libpenstock_on_fake_cuda.so")
_ROOTS = [pathlib.Path(os.environ.get("PENSTOCK_SOURCE", _HERE.parents[1])), _HERE.parents[1]]
_LIBRARIES = [root / _BUILT for root in _ROOTS if (root / _BUILT).exists()]
if _LIBRARIES:
    os.environ["PENSTOCK_LIBRARY"] = str(_LIBRARIES[0])
sys.path.insert(0, str(_HERE))
import cuda_support
import matrix
import optimizer_support as support
import penstock
import tiny_models
import torch
from penstock import reference

_STEPS = 3
_driver: ctypes.CDLL


def setUpModule() -> None:
    global _driver
    if not _LIBRARIES:
        raise unittest.SkipTest(f"{_BUILT} is not built, which needs the CUDA toolkit")
    _driver = cuda_support.load_driver()
    _driver.fake_cuda_resize.argtypes = [ctypes.c_size_t]


class DeviceHomeTest(support.OptimizerTest):
    def setUp(self) -> None:
        super().setUp()
        self.assertEqual(_driver.fake_cuda_violations(), b"")
        _driver.fake_cuda_resize(1 << 30)
        gpu = cuda_support.on_the_gpu(_driver)
        gpu.__enter__()
        self.addCleanup(gpu.__exit__, None, None, None)

    def assert_clean(self) -> None:
        """Nothing was noted, and nothing is registered any more."""
        self.assertEqual(_driver.fake_cuda_violations().decode(), "")
        self.assertEqual(_driver.fake_cuda_registered(), 0)


class OptimizerAtHomeOnTheDevice(DeviceHomeTest):
    def on_device(self, tower: torch.nn.Module, rule: str = "AdamW", **options: Any) -> Any:
        groups = support.decay_groups(tower)
        return self.make(groups, rule, where="host", home="device", **options)

    def test_trains_to_the_bits_of_the_reference(self) -> None:
        for rule in support.RULES:
            for dtype, late in ((torch.bfloat16, False), (torch.float32, True)):
                with self.subTest(rule=rule, dtype=dtype, late=late):
                    expected = support.tower(dtype)
                    plain = getattr(reference, rule)(support.decay_groups(expected))
                    losses = support.train(expected, plain, _STEPS, clip=0.5)
                    model = support.tower(dtype)
                    options: dict[str, Any] = {"model": model} if late else {}
                    optimizer = self.on_device(model, rule, **options)
                    self.assertGreater(optimizer.plan()["device_home_bytes"]["total"], 0)
                    self.assertEqual(support.train(model, optimizer, _STEPS, clip=0.5), losses)
                    optimizer.synchronize()
                    optimizer.close()
                    self.assert_clean()
                    self.assert_same_weights(expected, model)

    def states(self, optimizer: Any) -> list[torch.Tensor]:
        return [
            value
            for state in optimizer.full_state_dict()["state"].values()
            for value in state.values()
        ]

    def test_a_commit_goes_from_home_to_home_with_its_moments(self) -> None:
        homes: dict[str, dict[str, Any]] = {
            "device": {"where": "host", "home": "device"},
            "host": {"where": "host"},
            "nvme": {"where": "nvme"},
        }
        expected = support.tower(torch.bfloat16)
        whole = self.make(support.decay_groups(expected), where="host")
        support.train(expected, whole, 2)
        moments = self.states(whole)
        whole.close()
        for before, after in (("device", "host"), ("host", "device"), ("device", "nvme")):
            with self.subTest(before=before, after=after):
                run = os.path.join(self.folder, f"{before}-{after}")
                model = support.tower(torch.bfloat16)
                groups = support.decay_groups(model)
                optimizer = self.make(groups, **{**homes[before], "run": run})
                support.train(model, optimizer, 2)
                optimizer.commit()
                optimizer.close()
                again = support.tower(torch.bfloat16)
                groups = support.decay_groups(again)
                optimizer = self.make(groups, **{**homes[after], "run": run, "resume": True})
                self.assert_same_weights(expected, again)
                found = self.states(optimizer)
                self.assertEqual(len(found), len(moments))
                for one, other in zip(moments, found):
                    self.assertTrue(torch.equal(one, other))
                optimizer.close()
                self.assert_clean()

    def test_a_gradient_that_is_not_finite_changes_nothing(self) -> None:
        model = support.tower(torch.bfloat16)
        optimizer = self.on_device(model)
        support.train(model, optimizer, 1)
        before = support.weights(model)
        for parameter in model.parameters():
            parameter.grad = torch.full_like(parameter, torch.inf)
        with self.assertWarnsRegex(UserWarning, "is not finite"):
            optimizer.step()
        self.assertTrue(optimizer.skipped)
        for one, other in zip(before, model.parameters()):
            self.assertTrue(torch.equal(one, other))

    def test_a_device_without_room_is_refused_with_the_sum(self) -> None:
        model = support.tower()
        optimizer = self.on_device(model)
        need = optimizer.plan()["device_home_bytes"]["total"]
        _driver.fake_cuda_resize(need - 1)
        support.loss_of(model, torch.Generator().manual_seed(1)).backward()
        with self.assertRaises(penstock.BudgetError) as caught:
            optimizer.step()
        self.assert_line(caught.exception, f"need {need} bytes", "free 1 bytes more")

    def test_what_torch_has_in_reserve_is_free_for_states(self) -> None:
        model = support.tower()
        optimizer = self.on_device(model)
        _driver.fake_cuda_resize(optimizer.plan()["device_home_bytes"]["total"])
        reserve = ctypes.c_uint64()
        self.assertEqual(_driver.cuMemAlloc_v2(ctypes.byref(reserve), ctypes.c_size_t(1)), 0)
        with mock.patch.object(torch.cuda, "empty_cache", lambda: _driver.cuMemFree_v2(reserve)):
            support.train(model, optimizer, 1)
        optimizer.close()
        self.assert_clean()

    def test_other_places_beside_it_are_refused(self) -> None:
        for options in ({"home": "nvme"}, {"home": "device", "nvme_path": self.folder}):
            with self.assertRaises(penstock.InvalidArgumentError) as caught:
                penstock.AdamW(support.tower().parameters(), **options)
            self.assert_line(caught.exception, "home is", 'give "device"')


class ModuleAtHomeOnTheDevice(DeviceHomeTest):
    def setUp(self) -> None:
        super().setUp()
        warnings.simplefilter("ignore", FutureWarning)  # of transformers

    def steps(self, model: Any, optimizer: Any, cell: matrix.Cell, first: int, last: int) -> Any:
        losses = []
        for number in range(first * cell.micro_batches, last * cell.micro_batches):
            torch.manual_seed(number)
            batch = tiny_models.batch(cell.model, number, matrix.DTYPES[cell.dtype])
            loss = tiny_models.loss_of(model(**batch))
            loss.backward()
            losses.append(loss.detach())
            if (number + 1) % cell.micro_batches == 0:
                optimizer.step()
                optimizer.zero_grad()
        return losses

    def open(self, cell: matrix.Cell, run: str, nvme: str) -> Any:
        settings = matrix.config(cell.home, nvme, cell.micro_batches, cell.dtype)
        model = tiny_models.make(cell.model, matrix.DTYPES[cell.dtype], None)
        model, optimizer = penstock.initialize(model, settings, run=run)
        self.addCleanup(optimizer.close)
        return model, optimizer

    def train(self, cells: list[matrix.Cell]) -> tuple[Any, Any]:
        """Trains as long as there are cells, each of which continues the one before."""
        losses: list[torch.Tensor] = []
        with tempfile.TemporaryDirectory() as folder:
            run = os.path.join(folder, "run")
            for number, cell in enumerate(cells):
                model, optimizer = self.open(cell, run, folder)
                steps = _STEPS if len(cells) == 1 else 1
                losses += self.steps(model, optimizer, cell, number, number + steps)
                weights = {name: value.clone() for name, value in model.state_dict().items()}
                optimizer.commit()
                optimizer.close()
        return losses, weights

    def assert_equal(self, one: tuple[Any, Any], other: tuple[Any, Any]) -> None:
        self.assertTrue(all(torch.equal(a, b) for a, b in zip(one[0], other[0], strict=True)))
        for name, weight in one[1].items():
            self.assertTrue(torch.equal(weight, other[1][name]), name)
        self.assert_clean()

    def test_trains_to_the_bits_of_the_host(self) -> None:
        for model, micro_batches, dtype in (("llama", 3, "bf16"), ("odd", 1, "fp32")):
            device = matrix.Cell(model, "none", micro_batches, "device", dtype)
            with self.subTest(str(device)):
                host = device._replace(home="host")
                self.assert_equal(self.train([host]), self.train([device]))

    def test_a_commit_goes_from_home_to_home(self) -> None:
        device = matrix.Cell("gpt2", "none", 1, "device", "bf16")
        host, nvme = device._replace(home="host"), device._replace(home="nvme")
        self.assert_equal(self.train([host]), self.train([device, nvme, device]))
        self.assert_equal(self.train([host]), self.train([nvme, device, host]))


class OnTheCpu(support.OptimizerTest):
    def test_the_device_of_parameters_on_the_cpu_is_memory_of_the_host(self) -> None:
        model = support.tower()
        optimizer = self.make(model.parameters(), where="host", home="device")
        plan = optimizer.plan()
        self.assertEqual(plan["device_home_bytes"]["total"], 0)
        self.assertGreater(plan["host_bytes"]["states"], 0)
        self.assertIn("and the parameters are there as well", " ".join(plan["notices"]))
        support.train(model, optimizer, 1)


if __name__ == "__main__":
    unittest.main()
