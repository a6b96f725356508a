"""Parameters that share memory are refused, and parts of one storage that share nothing train."""

from __future__ import annotations

import os
import random
import unittest
from collections.abc import Callable
from typing import Any

import penstock
import torch
from level2_support import equal_weights, training
from optimizer_support import RULES, OptimizerTest, tower, train
from penstock import _overlaps, reference
from torch.multiprocessing.reductions import StorageWeakRef

Change = Callable[[Any], Any]
_SETTINGS = {"optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "weight_decay": 0.01}}}


class Two(torch.nn.Module):
    """Two layers, the second of which is used first."""

    def __init__(self, change: Change) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.last, self.first = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)
        change(self)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if hasattr(self, "scale"):
            x = x * self.scale.sum()
        return self.last(torch.tanh(self.first(x))).square().mean()


class Recurrent(torch.nn.Module):
    def __init__(self, kind: str, flat: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.cells = getattr(torch.nn, kind)(8, 16, num_layers=2, bidirectional=True)
        self.head = torch.nn.Linear(32, 4)
        self.storage = flatten(self.cells) if flat else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.cells(x.view(-1, 1, 8))[0]).square().mean()


def flatten(module: torch.nn.Module) -> StorageWeakRef:
    """Lays all parameters of a module into one storage, as recurrent modules do for cuDNN."""
    parameters = list(module.parameters())
    flat = torch.cat([p.detach().flatten() for p in parameters])
    for parameter, part in zip(parameters, flat.split([p.numel() for p in parameters])):
        parameter.data = part.view(parameter.shape)
    return StorageWeakRef(flat.untyped_storage())


def take_data(module: Any) -> None:
    module.last.weight = torch.nn.Parameter(module.first.weight.data)


def take_a_part(module: Any) -> None:
    module.last.bias = torch.nn.Parameter(module.first.weight.detach().flatten()[3:11])


def lay_into(split: Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]) -> Change:
    """Makes both weights views of one tensor."""

    def change(module: Any) -> None:
        both = torch.cat([module.first.weight.detach(), module.last.weight.detach()], 1)
        for layer, part in zip((module.first, module.last), split(both)):
            layer.weight = torch.nn.Parameter(part)

    return change


def nothing(module: Any) -> None:
    pass


def freeze_a_share(module: Any) -> None:
    module.scale = torch.nn.Parameter(module.last.weight.data, requires_grad=False)


def keep_a_share(module: Any) -> None:
    module.register_buffer("scale", module.last.weight.data)


DISJOINT = {
    "rows": lay_into(lambda both: (both.view(2, 8, 8)[0], both.view(2, 8, 8)[1])),
    "columns": lay_into(lambda both: (both[:, :8], both[:, 8:])),
    "every other column": lay_into(lambda both: (both[:, ::2], both[:, 1::2])),
    "transposed": lay_into(lambda both: (both[:, :8].t(), both[:, 8:].t())),
}


def losses(model: Any, optimizer: Any, steps: int = 4) -> list[float]:
    generator = torch.Generator().manual_seed(1)
    found = []
    for _ in range(steps):
        loss = model(torch.randn(4, 8, generator=generator))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        found.append(loss.item())
    return found


class MemoryIsShared(OptimizerTest):
    """Both levels refuse what they cannot train as torch does."""

    def refuse(self, call: Callable[[], Any], *parts: str) -> None:
        with self.assertRaises(penstock.InvalidArgumentError) as caught:
            call()
        self.assert_line(caught.exception, "share", "memory", "p.data.clone()", *parts)

    def initialize(self, model: torch.nn.Module, **options: Any) -> Any:
        run = os.path.join(self.folder, "run")
        _, optimizer = penstock.initialize(model, _SETTINGS, run=run, **options)
        self.addCleanup(optimizer.close)
        return optimizer

    def test_two_parameters_of_one_memory_are_refused_by_their_names(self) -> None:
        for change, name in ((take_data, "last.weight"), (take_a_part, "last.bias")):
            model = Two(change)
            for rule in RULES:
                for options in ({}, {"model": model}):
                    self.refuse(
                        lambda: self.make(model.named_parameters(), rule, **options),
                        f"parameters {name} and first.weight are two",
                    )
            self.refuse(lambda: self.initialize(model), f"parameters {name} and first.weight")
        self.assertEqual(os.listdir(self.folder), [])
        model = Two(take_data)
        groups = [
            {"params": [model.first.weight]},
            {"params": [model.first.bias, model.last.weight]},
        ]
        self.refuse(lambda: self.make(groups), "groups.0.0 and groups.1.1")

    def test_memory_that_is_shared_before_the_first_use_is_refused_then(self) -> None:
        model = Two(nothing)
        optimizer = self.make(model.named_parameters())
        model.last.weight.data = model.first.weight.data
        self.refuse(lambda: losses(model, optimizer), "last.weight and first.weight")
        self.assertEqual(os.listdir(self.folder), [])
        model = Two(nothing)
        self.initialize(model)
        model.last.weight.data = model.first.weight.data
        self.refuse(lambda: model(torch.ones(1, 8)), "last.weight and first.weight")

    def test_a_parameter_whose_elements_share_memory_is_refused(self) -> None:
        wide = torch.ones(1).expand(1 << 40)  # which nobody may go through
        steps = torch.ones(8).unfold(0, 4, 2)
        for value in (torch.ones(1).expand(4), wide, steps):

            def change(module: Any, value: torch.Tensor = value) -> None:
                module.scale = torch.nn.Parameter(value)

            model = Two(change)
            optimizer = self.make(model.named_parameters())
            model.scale.grad = torch.ones(1).expand(model.scale.shape)
            self.refuse(optimizer.step, "of parameter scale share")
            self.refuse(lambda: self.initialize(model), "of parameter scale share")

    def test_level_2_refuses_what_would_not_follow_the_updates(self) -> None:
        for change, what in (
            (freeze_a_share, "frozen parameter scale"),
            (keep_a_share, "buffer scale"),
        ):
            self.refuse(
                lambda: self.initialize(Two(change)), f"{what} shares memory with", "last.weight"
            )

    def test_sharing_is_seen_where_there_is_no_memory_yet(self) -> None:
        with penstock.init():
            model = Two(take_data)
        self.refuse(
            lambda: self.initialize(model, weights="random"), "last.weight and first.weight"
        )
        with penstock.init():
            model = Two(nothing)  # all of its addresses are 0
        losses(model, self.initialize(model, weights="random"))


class NothingIsShared(OptimizerTest):
    """What has a storage in common, and no element, trains as in plain memory."""

    def both_levels(self, make: Callable[[], Any]) -> None:
        expected = make()
        want = losses(expected, reference.AdamW(expected.parameters(), lr=1e-2))
        for late in (False, True):
            model = make()
            options = {"model": model} if late else {}
            optimizer = self.make(model.parameters(), lr=1e-2, **options)
            self.assertEqual(losses(model, optimizer), want)
            optimizer.synchronize()
            self.assert_same_weights(expected, model)
        expected = make()
        for parameter in expected.parameters():  # level 2 has all of them so
            parameter.data = parameter.data.contiguous()
        want = losses(expected, reference.AdamW(expected.parameters(), lr=1e-2))
        with training(model=make(), more=_SETTINGS) as (model, optimizer):
            self.assertEqual(losses(model, optimizer), want)
            self.assertTrue(equal_weights(expected, model))

    def test_views_of_one_tensor_are_trained(self) -> None:
        for name, change in DISJOINT.items():
            with self.subTest(name):
                self.both_levels(lambda change=change: Two(change))

    def test_recurrent_modules_with_one_storage_are_trained(self) -> None:
        for kind in ("LSTM", "GRU"):
            for flat in (False, True):
                with self.subTest(kind, flat=flat):
                    self.both_levels(lambda: Recurrent(kind, flat))

    def test_level_2_gives_back_the_storage_that_parameters_were_parts_of(self) -> None:
        model = Recurrent("LSTM", flat=True)
        storage = model.storage
        with training(model=model, more=_SETTINGS) as (model, optimizer):
            self.assertFalse(storage.expired())
            losses(model, optimizer, 1)
            self.assertTrue(storage.expired())
            self.assertTrue(model.cells.weight_hh_l0.isnan().all())

    def test_frozen_parameters_may_share_memory(self) -> None:
        def make() -> torch.nn.Module:
            model = Two(take_data)
            model.first.weight.requires_grad_(False)
            model.last.weight.requires_grad_(False)
            return model

        self.both_levels(make)

    def test_parameters_without_elements_share_nothing(self) -> None:
        def change(module: Any) -> None:
            empty = torch.empty(0)
            module.none, module.nothing = torch.nn.Parameter(empty), torch.nn.Parameter(empty)

        self.both_levels(lambda: Two(change))

    def test_tied_weights_are_one_parameter(self) -> None:
        def change(module: Any) -> None:
            module.last.weight = module.first.weight

        self.both_levels(lambda: Two(change))

    def test_level_1_shows_new_weights_in_all_that_shares_their_memory(self) -> None:
        """The root has a share of what another module owns, and reads it first."""
        for change in (freeze_a_share, keep_a_share):
            expected = Two(change)
            want = losses(expected, reference.AdamW(expected.parameters(), lr=1e-2))
            model = Two(change)
            optimizer = self.make(model.parameters(), lr=1e-2, model=model)
            self.assertEqual(losses(model, optimizer), want)

    def test_an_optimizer_takes_the_place_of_one_that_waits_for_weights(self) -> None:
        weights = []
        for again in (False, True):
            model = tower()
            optimizer = penstock.AdamW(model.parameters(), nvme_path=self.folder, model=model)
            train(model, optimizer, 1)
            if again:  # the first one ends when its name is given away
                optimizer = penstock.AdamW(model.parameters(), nvme_path=self.folder, model=model)
            else:
                optimizer.close()
                optimizer = penstock.AdamW(model.parameters(), nvme_path=self.folder, model=model)
            train(model, optimizer, 1)
            optimizer.close()
            weights.append([p.detach().clone() for p in model.parameters()])
        self.assertTrue(all(torch.equal(a, b) for a, b in zip(*weights)))

    def test_an_optimizer_that_waits_for_weights_may_be_planned(self) -> None:
        model = tower()
        optimizer = self.make(model.parameters(), model=model)
        train(model, optimizer, 1)
        self.assertTrue(model.norm.weight.isnan().all())
        optimizer.plan()


class Elements(unittest.TestCase):
    def test_views_share_memory_if_and_only_if_they_have_an_element_in_common(self) -> None:
        draw = random.Random(0)
        numbers = torch.arange(40)
        memory = torch.zeros(40)
        found = set()

        def view() -> tuple[torch.Tensor, list[int]]:
            shape = [draw.randint(1, 4) for _ in range(draw.randint(0, 3))]
            strides = [draw.choice((0, 1, 1, 2, 3, 4, 6, 9)) for _ in shape]
            reach = sum(s * (n - 1) for s, n in zip(strides, shape))
            place = (shape, strides, draw.randrange(40 - reach)) if reach < 40 else ((), (), 0)
            return memory.as_strided(*place), numbers.as_strided(*place).flatten().tolist()

        for _ in range(3000):
            (one, of_one), (other, of_other) = view(), view()
            elements = of_one + of_other
            expected = len(set(elements)) < len(elements)
            try:
                _overlaps.check([("one", one), ("other", other)])
                shared = False
            except penstock.InvalidArgumentError:
                shared = True
            self.assertEqual(
                shared, expected, (one.shape, one.stride(), other.shape, other.stride())
            )
            found.add(shared)
        self.assertEqual(found, {False, True})

    def test_tensors_of_other_sizes_of_elements_and_kinds_are_told_apart(self) -> None:
        memory = torch.zeros(8)
        halves = memory.view(torch.bfloat16)
        sparse = torch.eye(2).to_sparse()
        fine = [memory[:4], halves[8:], sparse, torch.empty(3, device="meta"), torch.zeros(0)]
        _overlaps.check([(str(i), tensor) for i, tensor in enumerate(fine)])
        with self.assertRaisesRegex(penstock.InvalidArgumentError, "a and b"):
            _overlaps.check([("a", memory[4:]), ("b", halves[15:])])


if __name__ == "__main__":
    unittest.main()
