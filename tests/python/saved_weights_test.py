"""What autograd saves of weights comes back in a backward, whatever a module does with them."""

from __future__ import annotations

import gc
import threading
import unittest
from typing import Any

import torch
from level2_support import equal_weights, training
from penstock import reference
from penstock.errors import UnavailableError
from torch import nn


class Block(nn.Module):
    """A block that returns a tensor, nothing at all, or an object that hides it."""

    def __init__(self, gives: str) -> None:
        super().__init__()
        self.gives = gives
        self.up = nn.Linear(24, 24)
        self.down = nn.Linear(24, 24)

    def forward(self, x: Any) -> Any:
        value = x["x"] if isinstance(x, dict) else getattr(x, "value", x)
        y = value + self.down(torch.tanh(self.up(value)))
        if self.gives == "nothing":
            x["x"] = y
            return None
        if self.gives == "an object":
            return Hidden(y)
        if self.gives == "a view":
            return y.view(-1).view(y.shape)
        return y


class Hidden:
    """An output in which no tensor is found."""

    def __init__(self, value: torch.Tensor) -> None:
        self.value = value


class Net(nn.Module):
    """Blocks whose features are kept, for losses on what no module returns."""

    def __init__(self, gives: str = "a tensor", frozen: bool = False, blocks: int = 5) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.first = nn.Linear(8, 24)
        self.blocks = nn.ModuleList(Block(gives) for _ in range(blocks))
        self.last = nn.Linear(24, 4)
        self.blocks.requires_grad_(not frozen)
        self.features: list[torch.Tensor] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.features = []
        x = self.first(x)
        state: Any = {"x": x} if self.blocks[0].gives == "nothing" else x
        for block in self.blocks:
            given = block(state)
            state = state if given is None else given
            value = state["x"] if isinstance(state, dict) else getattr(state, "value", state)
            if self.blocks[0].gives == "a view":
                value += 1  # in place, behind the hooks
            self.features.append(value)
        y: torch.Tensor = self.last(self.features[-1])
        return y


def batch(number: int) -> torch.Tensor:
    return torch.randn(6, 8, generator=torch.Generator().manual_seed(number))


def loss_of(model: Any, number: int) -> torch.Tensor:
    loss: torch.Tensor = model(batch(number)).square().mean()
    return loss + sum(feature.square().mean() for feature in model.features[:-1])


class SavedWeights(unittest.TestCase):
    def check(self, loss: Any = loss_of, home: str = "nvme", **options: Any) -> None:
        """Three steps equal those in plain memory, bit for bit."""
        expected = Net(**options)
        trained = [p for p in expected.parameters() if p.requires_grad]
        other = reference.AdamW(trained, lr=1e-3, weight_decay=0.1)
        other._cut["model"] = expected  # norms are summed up in the order of its units
        with training(home=home, model=Net(**options)) as (model, optimizer):
            for number in range(3):
                losses = []
                for net, steps in ((expected, other), (model, optimizer)):
                    value = loss(net, number)
                    value.backward()
                    steps.step()
                    steps.zero_grad()
                    losses.append(value.detach())
                self.assertTrue(torch.equal(*losses), number)
                self.assertEqual(other.grad_norm, optimizer.grad_norm)
            self.assertTrue(equal_weights(expected, model))

    def test_of_blocks_whose_outputs_no_hook_sees(self) -> None:
        for gives in ("a tensor", "nothing", "an object", "a view"):
            for frozen in (False, True):
                with self.subTest(gives=gives, frozen=frozen):
                    self.check(gives=gives, frozen=frozen)

    def test_of_every_home(self) -> None:
        for home in ("host", "device"):
            self.check(home=home, gives="nothing", frozen=True)

    def test_of_two_graphs_whose_backwards_alternate(self) -> None:
        def loss(model: Any, number: int) -> torch.Tensor:
            first, second = loss_of(model, number), loss_of(model, number + 50)
            return first + second

        self.check(loss, frozen=True)
        self.check(loss)

    def test_under_hooks_of_the_caller(self) -> None:
        def on_cpu(model: Any, number: int) -> torch.Tensor:
            with torch.autograd.graph.save_on_cpu():
                return loss_of(model, number)

        def packed(model: Any, number: int) -> torch.Tensor:
            with torch.autograd.graph.saved_tensors_hooks(lambda t: t.numpy(), torch.from_numpy):
                return loss_of(model, number)

        self.check(on_cpu, frozen=True)
        self.check(packed, frozen=True)

    def test_under_checkpointing_of_both_kinds(self) -> None:
        for reentrant in (False, True):

            def loss(model: Any, number: int, reentrant: bool = reentrant) -> torch.Tensor:
                x = batch(number).requires_grad_()
                y = torch.utils.checkpoint.checkpoint(model, x, use_reentrant=reentrant)
                value: torch.Tensor = y.square().mean()
                return value

            self.check(loss)
            self.check(loss, frozen=True)

    def test_where_torch_allows_no_hooks(self) -> None:
        def loss(model: Any, number: int) -> torch.Tensor:
            x = batch(number)
            value: torch.Tensor = model(x).square().mean()
            gradient = torch.func.grad(lambda x: model(x).square().mean())(x)
            return value + gradient.detach().square().mean()

        self.check(loss)

    def test_a_tensor_that_was_changed_in_place_is_refused_as_in_torch(self) -> None:
        with training(model=Net()) as (model, _):
            model(batch(0))
            loss = model.features[1].square().sum() + model.features[2].tanh().sum()
            with torch.no_grad():
                model.features[1].mul_(2)
            with self.assertRaisesRegex(RuntimeError, "modified by an inplace operation"):
                loss.backward()

    def test_graphs_are_freed_with_their_outputs(self) -> None:
        alive = []
        with training(model=Net()) as (model, _):
            for number in range(3):
                loss = loss_of(model, number)
                alive.append(torch.UntypedStorage._weak_ref(model.features[1].untyped_storage()))
                del loss
                model.features = []
            gc.collect()
            for storage in alive:
                self.assertTrue(torch.UntypedStorage._expired(storage))
                torch.UntypedStorage._free_weak_ref(storage)


class Threads(unittest.TestCase):
    def test_a_forward_beside_a_backward_of_another_thread_is_refused(self) -> None:
        said: list[str] = []
        with training(model=Net(frozen=True)) as (model, optimizer):

            def forward() -> None:
                try:
                    with torch.no_grad():
                        model(batch(7))
                except UnavailableError as error:
                    said.append(str(error))

            def beside(_: Any) -> None:
                thread = threading.Thread(target=forward)
                thread.start()
                thread.join()

            loss = loss_of(model, 0)
            model.features[2].register_hook(beside)
            loss.backward()
            self.assertEqual(len(said), 1)
            self.assertIn("one thread at a time", said[0])
            optimizer.step()
            handle = model.blocks[2].register_forward_hook(lambda *_: beside(None))
            with torch.no_grad():
                model(batch(1))
            handle.remove()
            self.assertEqual(len(said), 2)
            forward()
            thread = threading.Thread(target=forward)  # nobody else computes now
            thread.start()
            thread.join()
            self.assertEqual(len(said), 2)


if __name__ == "__main__":
    unittest.main()
