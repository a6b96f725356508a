"""Wrong calls are refused with one line, and leave the optimizer unchanged."""

from __future__ import annotations

import copy
import multiprocessing
import os
import pickle
import unittest
from typing import Any
from unittest import mock

import optimizer_support as support
import penstock
import torch
from optimizer_support import OptimizerTest, loss_of, tower, train
from penstock.errors import (
    BudgetError,
    InvalidArgumentError,
    NotFoundError,
    PenstockError,
    UnavailableError,
)


def in_child(queue: Any, optimizer: Any, model: Any) -> None:
    """Uses an optimizer that a fork has copied; tells what is said."""
    said = []
    for call in (optimizer.step, optimizer.synchronize, optimizer.commit, optimizer.state_dict):
        try:
            for parameter in model.parameters():
                parameter.grad = torch.zeros_like(parameter)
            call()
            said.append("no error")
        except PenstockError as error:
            said.append(str(error))
    optimizer.close()
    queue.put(said)


class MistakesAreRefused(OptimizerTest):
    def refuse(self, error: type[PenstockError], parts: list[str], call: Any, *a: Any) -> None:
        with self.assertRaises(error) as caught:
            call(*a)
        self.assert_line(caught.exception, *parts)

    def test_a_place_for_the_state_is_needed(self) -> None:
        parts = ["nvme_path", "run="]
        self.refuse(InvalidArgumentError, parts, penstock.AdamW, tower().parameters())

    def test_nvme_path_has_to_be_there(self) -> None:
        path = os.path.join(self.folder, "nowhere")
        self.refuse(
            NotFoundError,
            [path, "make it first"],
            lambda: self.make(tower().parameters(), nvme_path=path, run=self.folder),
        )

    def test_too_little_memory_is_refused_with_what_is_enough(self) -> None:
        model = tower()
        optimizer = self.make(model.parameters(), host_memory="64KiB")
        self.refuse(BudgetError, ["raise the host memory"], train, model, optimizer)
        self.assertEqual(os.listdir(self.folder), [])

    def test_options_that_torch_has_and_we_do_not(self) -> None:
        for key in ("amsgrad", "maximize"):
            model = tower()
            optimizer = self.make([{"params": model.parameters(), key: True}])
            self.refuse(InvalidArgumentError, [key, "group 0"], train, model, optimizer)

    def test_words_that_options_do_not_have(self) -> None:
        for option in ({"missing_gradients": "none"}, {"resume": "never"}):
            self.refuse(
                InvalidArgumentError,
                [repr(next(iter(option.values())))],
                lambda option=option: self.make(tower().parameters(), **option),
            )

    def test_a_configuration_that_says_what_arguments_say(self) -> None:
        for key in ("optimizer", "scheduler"):
            self.refuse(
                InvalidArgumentError,
                [f"config has {key}"],
                lambda key=key: self.make(
                    tower().parameters(), config={key: {"type": "AdamW", "params": {}}}
                ),
            )
        model = tower()
        optimizer = self.make(model.parameters(), config={"penstock": {"tile_element": 1}})
        self.refuse(InvalidArgumentError, ["tile_element"], train, model, optimizer)

    def test_parameters_of_other_devices_and_dtypes(self) -> None:
        meta = torch.nn.Linear(2, 2, device="meta")
        self.refuse(
            InvalidArgumentError,
            ["groups.0.0 has no values", "meta device", "initialize the weights"],
            self.make,
            meta.parameters(),
        )
        double = torch.nn.Linear(2, 2).double()
        self.refuse(InvalidArgumentError, ["float64"], self.make, double.parameters())

    def test_parameters_without_a_shape_and_sparse_ones(self) -> None:
        lazy = torch.nn.LazyLinear(2)
        self.refuse(
            InvalidArgumentError,
            ["weight has no shape yet", "run the module once"],
            self.make,
            lazy.named_parameters(),
        )
        lazy(torch.ones(1, 2))
        self.make(lazy.parameters())
        sparse = torch.nn.Parameter(torch.eye(2).to_sparse())
        self.refuse(InvalidArgumentError, ["layout torch.sparse_coo"], self.make, [sparse])

    def test_missing_gradients_are_named(self) -> None:
        model = tower()
        optimizer = self.make(model.named_parameters())
        model.norm.weight.sum().backward()
        before = support.weights(model)
        self.refuse(
            InvalidArgumentError,
            ["embedding.weight", "and 15 more", "missing_gradients"],
            optimizer.step,
        )
        for old, new in zip(before, model.parameters()):
            self.assertTrue(torch.equal(old, new))

    def test_groups_after_the_first_step(self) -> None:
        model = tower()
        optimizer = self.make(model.parameters())
        train(model, optimizer, 1)
        extra = {"params": [torch.nn.Parameter(torch.zeros(1))]}
        self.refuse(
            InvalidArgumentError, ["before the first step"], optimizer.add_param_group, extra
        )
        train(model, optimizer, 1)

    def test_parameters_that_are_unfrozen_later(self) -> None:
        model = tower()
        model.norm.weight.requires_grad_(False)
        optimizer = self.make(model.parameters())
        train(model, optimizer, 1)
        model.norm.weight.requires_grad_(True)
        self.refuse(InvalidArgumentError, ["requires_grad_(True)"], train, model, optimizer, 1)

    def test_weights_that_change_from_outside(self) -> None:
        def load(model: torch.nn.Module) -> None:
            model.load_state_dict(tower().state_dict())

        def surgery(model: torch.nn.Module) -> None:
            with torch.no_grad():
                model.norm.weight.mul_(2)

        def replace(model: torch.nn.Module) -> None:
            model.norm.weight.data = torch.ones(48)

        def convert(model: torch.nn.Module) -> None:
            model.bfloat16()

        def clamp(model: torch.nn.Module) -> None:
            model.head.weight.data.clamp_(-0.01, 0.01)  # moves no version counter

        def by_numpy(model: torch.nn.Module) -> None:
            model.norm.bias.detach().numpy()[:] += 1

        for change in (load, surgery, replace, convert, clamp, by_numpy):
            for late in (False, True):
                with self.subTest(change=change.__name__, late=late):
                    model = tower()
                    optimizer = self.make(model.named_parameters(), model=model if late else None)
                    train(model, optimizer, 2)
                    optimizer.synchronize()
                    change(model)
                    self.refuse(
                        InvalidArgumentError,
                        ["parameter", "changed from outside", "new optimizer"],
                        train,
                        model,
                        optimizer,
                        1,
                    )

    def test_a_module_that_is_converted_while_it_waits_for_weights(self) -> None:
        model, other = tower(), tower()
        optimizer = self.make(model.parameters(), model=model)
        train(model, optimizer, 1)
        train(other, self.make(other.parameters()), 1)
        model.bfloat16()
        other.bfloat16()
        optimizer.synchronize()
        self.assert_same_weights(model, other)
        self.refuse(InvalidArgumentError, ["changed from outside"], train, model, optimizer, 1)

    def test_weights_that_are_replaced_while_they_wait_are_kept(self) -> None:
        model = tower()
        optimizer = self.make(model.parameters(), model=model)
        train(model, optimizer, 1)
        model.norm.weight.data = torch.full((48,), 7.0)
        self.refuse(InvalidArgumentError, ["changed from outside"], train, model, optimizer, 1)
        self.assertTrue(model.norm.weight.eq(7).all())

    def test_pickling_and_copying(self) -> None:
        optimizer = self.make(tower().parameters())
        self.refuse(UnavailableError, ["state_dict()"], pickle.dumps, optimizer)
        self.refuse(UnavailableError, ["state_dict()"], copy.deepcopy, optimizer)

    def test_a_forked_child(self) -> None:
        model = tower()
        optimizer = self.make(model.parameters())
        train(model, optimizer, 1)
        context = multiprocessing.get_context("fork")
        queue = context.Queue()
        child = context.Process(target=in_child, args=(queue, optimizer, model))
        child.start()
        for said in queue.get(timeout=60):
            self.assertIn("belongs to the process that made it", said)
        child.join()
        self.assertEqual(child.exitcode, 0)
        train(model, optimizer, 1)
        self.assertNotEqual(os.listdir(self.folder), [])

    def test_several_ranks(self) -> None:
        distributed = torch.distributed
        model = tower()
        optimizer = self.make(model.parameters())
        real = distributed.is_initialized, distributed.get_world_size
        distributed.is_initialized, distributed.get_world_size = lambda: True, lambda: 2
        try:
            self.refuse(UnavailableError, ["2 ranks"], train, model, optimizer)
        finally:
            distributed.is_initialized, distributed.get_world_size = real

    def test_several_ranks_that_a_launcher_has_started(self) -> None:
        model = tower()
        with mock.patch.dict(os.environ, {"WORLD_SIZE": "2"}):
            self.refuse(
                UnavailableError, ["one of 2 ranks", "one process"], self.make, model.parameters()
            )
        with mock.patch.dict(os.environ, {"WORLD_SIZE": "two"}):
            self.refuse(
                InvalidArgumentError, ["WORLD_SIZE is 'two'"], self.make, model.parameters()
            )
        self.assertEqual(os.listdir(self.folder), [])
        with mock.patch.dict(os.environ, {"WORLD_SIZE": "1"}):
            train(model, self.make(model.parameters()), 1)

    def test_a_run_that_is_open_elsewhere(self) -> None:
        run = os.path.join(self.folder, "run")
        first = self.make(tower().parameters(), run=run)
        self.refuse(
            UnavailableError,
            [run, "open in this process"],
            lambda: self.make(tower().parameters(), run=run),
        )
        first.close()
        self.make(tower().parameters(), run=run)

    def test_an_optimizer_that_was_closed(self) -> None:
        model = tower()
        optimizer = self.make(model.parameters())
        train(model, optimizer, 1)
        optimizer.close()
        for call in (optimizer.commit, optimizer.state_dict, optimizer.attach):
            self.refuse(InvalidArgumentError, ["was closed"], call)
        self.refuse(InvalidArgumentError, ["was closed"], train, model, optimizer, 1)
        optimizer.close()

    def test_an_optimizer_whose_commit_could_not_be_opened(self) -> None:
        model = tower()
        optimizer = self.make(model.parameters())
        train(model, optimizer, 1)
        saved = optimizer.state_dict()
        train(model, optimizer, 1)
        saved["penstock"].update(step=7, engine_step=7)
        self.refuse(InvalidArgumentError, ["step 7"], optimizer.load_state_dict, saved)
        train(model, optimizer, 1)  # nothing was given up
        saved["penstock"]["snapshot"] = optimizer.snapshot(os.path.join(self.folder, "copy"))
        self.refuse(InvalidArgumentError, ["step 7"], optimizer.load_state_dict, saved)
        self.refuse(InvalidArgumentError, ["given up"], train, model, optimizer, 1)

    def test_an_interrupt_in_a_step_changes_nothing(self) -> None:
        mine, other = tower(), tower()
        optimizer = self.make(mine.parameters())
        plain = self.make(other.parameters())
        train(mine, optimizer, 1)
        engine = optimizer._training.engine
        gradient = engine.gradient
        calls = []

        def interrupted(*arguments: Any) -> None:
            calls.append(arguments)
            if len(calls) == 5:
                raise KeyboardInterrupt
            gradient(*arguments)

        engine.gradient = interrupted
        with self.assertRaises(KeyboardInterrupt):
            train(mine, optimizer, 1, seed=9)
        engine.gradient = gradient
        optimizer.zero_grad()
        train(mine, optimizer, 2, seed=2)
        train(other, plain, 1)
        train(other, plain, 2, seed=2)
        self.assert_same_weights(mine, other)

    def test_an_interrupt_while_weights_come_back_waits_until_they_are(self) -> None:
        mine, other = tower(), tower()
        optimizer, plain = self.make(mine.parameters()), self.make(other.parameters())
        train(mine, optimizer, 1)
        train(other, plain, 2)
        engine = optimizer._training.engine
        use = engine.use_tensors
        calls = []

        def interrupted(*arguments: Any) -> None:
            use(*arguments)
            calls.append(arguments)
            if len(calls) == 1:
                raise KeyboardInterrupt

        engine.use_tensors = interrupted
        loss_of(mine, self.second_batch()).backward()
        with self.assertRaises(KeyboardInterrupt):
            optimizer.step()
        self.assert_same_weights(mine, other)

    @staticmethod
    def second_batch() -> torch.Generator:
        """Returns the generator of `train` after its first batch."""
        generator = torch.Generator().manual_seed(1)
        torch.randint(0, 50, (4, 9), generator=generator)
        return generator


class Rows(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, i: int) -> torch.Tensor:
        return torch.full((4,), float(i))


class LoadersWithWorkers(OptimizerTest):
    def test_workers_by_fork_and_by_spawn(self) -> None:
        torch.manual_seed(0)
        model = torch.nn.Linear(4, 4)
        optimizer = self.make(model.parameters(), model=model, commit_every_steps=2)
        for method, workers in (("fork", 2), ("fork", 2), ("spawn", 1)):
            loader = torch.utils.data.DataLoader(
                Rows(), batch_size=2, num_workers=workers, multiprocessing_context=method
            )
            for (
                batch
            ) in loader:  # from the second time on workers start while updates are under way
                model(batch).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
        self.assertEqual(optimizer.steps, 12)
        optimizer.synchronize()
        self.assertFalse(model.weight.isnan().any())


if __name__ == "__main__":
    unittest.main()
