"""What ``.grad`` shows at level 2, where the engine has the gradients: code that reads or changes
gradients does what it does in plain memory."""

from __future__ import annotations

import copy
import pickle
import unittest
from collections.abc import Callable
from typing import Any

import tiny_models
import torch
from level2_support import equal_weights, plain, training
from penstock.errors import InvalidArgumentError


def backward(model: Any, number: int) -> None:
    torch.manual_seed(number)
    tiny_models.loss_of(model(**tiny_models.batch("gpt2", number))).backward()


class GradientsTest(unittest.TestCase):
    def check(self, change: Callable[[Any, Any], Any], micro_batches: int = 1) -> None:
        """Three steps whose gradients a function reads and changes equal those in plain memory."""
        expected, other = plain("gpt2")
        with training("gpt2", micro_batches=micro_batches) as (model, optimizer):
            for number in range(3):
                found = []
                for net, steps in ((expected, other), (model, optimizer)):
                    backward(net, number)
                    found.append(change(net, steps))
                    steps.step()
                    steps.zero_grad()
                self.assertTrue(torch.equal(*map(torch.as_tensor, found)), number)
            self.assertTrue(equal_weights(expected, model))

    def test_torch_clips_them_by_norm(self) -> None:
        for foreach in (None, False, True):
            self.check(
                lambda model, _, foreach=foreach: torch.nn.utils.clip_grad_norm_(
                    model.parameters(), 0.05, foreach=foreach
                )
            )

    def test_torch_clips_them_by_value(self) -> None:
        def clip(model: Any, _: Any) -> float:
            torch.nn.utils.clip_grad_value_(model.parameters(), 1e-3)
            return 0.0

        self.check(clip)

    def test_they_are_read_by_any_function(self) -> None:
        self.check(lambda m, _: torch.stack([p.grad.norm() for p in m.parameters()]))
        self.check(lambda m, _: torch.cat([p.grad.view(-1) for p in m.parameters()]))
        self.check(lambda m, _: torch.stack(torch._foreach_norm([p.grad for p in m.parameters()])))

    def test_they_are_changed_in_place_through_views_and_by_assignment(self) -> None:
        def halve(model: Any, _: Any) -> float:
            for number, parameter in enumerate(model.parameters()):
                if number % 4 == 0:
                    parameter.grad.mul_(0.5)
                elif number % 4 == 1:
                    parameter.grad.data.mul_(0.5)
                elif number % 4 == 2:
                    parameter.grad.view(-1)[:].mul_(0.5)
                else:
                    parameter.grad = parameter.grad * 0.5
            return 0.0

        self.check(halve)

    def test_noise_may_be_added_to_them(self) -> None:
        def noise(model: Any, _: Any) -> float:
            generator = torch.Generator().manual_seed(3)
            for parameter in model.parameters():
                parameter.grad += torch.randn(parameter.shape, generator=generator)
            return 0.0

        self.check(noise)

    def test_several_backwards_add_up_in_them(self) -> None:
        def twice(model: Any, optimizer: Any) -> float:
            first = [p.grad.clone() for p in model.parameters()]
            backward(model, 50)
            for before, parameter in zip(first, model.parameters()):
                self.assertFalse(torch.equal(before, parameter.grad))
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.05)
            return 0.0

        self.check(twice, micro_batches=2)

    def test_autograd_grad_leaves_them_as_they_are(self) -> None:
        def also(model: Any, _: Any) -> torch.Tensor:
            loss = tiny_models.loss_of(model(**tiny_models.batch("gpt2", 7)))
            return torch.autograd.grad(loss, list(model.parameters()))[0].norm()

        self.check(also)

    def test_a_hook_of_the_caller_sees_them(self) -> None:
        seen: list[torch.Tensor] = []
        with training("gpt2") as (model, optimizer):
            parameter = model.transformer.h[0].mlp.c_fc.weight
            parameter.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.norm()))
            backward(model, 0)
            self.assertTrue(torch.equal(seen[0], parameter.grad.norm()))
            optimizer.step()

    def test_a_hook_of_the_caller_may_add_to_them(self) -> None:
        def add(parameter: Any) -> None:
            parameter.grad += torch.full_like(parameter, 0.25)

        expected, other = plain("gpt2")
        with training("gpt2") as (model, optimizer):
            for net in (expected, model):
                parameter = net.transformer.h[0].mlp.c_fc.weight
                parameter.register_post_accumulate_grad_hook(add)
            for number in range(3):
                for net, steps in ((expected, other), (model, optimizer)):
                    backward(net, number)
                    steps.norms = [p.grad.norm() for p in net.parameters()]
                    steps.step()
                    steps.zero_grad()
                self.assertTrue(all(map(torch.equal, other.norms, optimizer.norms)))
            self.assertTrue(equal_weights(expected, model))

    def test_copies_of_them_have_their_values_and_they_end_with_the_step(self) -> None:
        with training("gpt2") as (model, optimizer):
            backward(model, 0)
            gradient = next(model.parameters()).grad
            values = gradient.clone()
            for made in (copy.deepcopy(gradient), pickle.loads(pickle.dumps(gradient))):
                self.assertIs(type(made), torch.Tensor)
                self.assertTrue(torch.equal(made, values))
            self.assertEqual(repr(gradient), repr(values))
            optimizer.step()
            self.assertIsNone(next(model.parameters()).grad)
            with self.assertRaisesRegex(InvalidArgumentError, "clone it before"):
                gradient.norm()

    def test_what_is_let_go_does_not_count(self) -> None:
        expected, other = plain("gpt2")
        with training("gpt2") as (model, optimizer):
            for net, steps in ((expected, other), (model, optimizer)):
                backward(net, 9)
                for parameter in net.parameters():
                    parameter.grad = None  # without the optimizer
                backward(net, 0)
                steps.step()
            self.assertTrue(equal_weights(expected, model))
            backward(model, 1)
            next(model.parameters()).grad = None
            with self.assertRaisesRegex(InvalidArgumentError, "1 parameters have no gradient"):
                optimizer.step()

    def test_a_scaler_scales_checks_and_unscales_them(self) -> None:
        for unscales in (False, True):
            with self.subTest(unscales=unscales), training("gpt2") as (model, optimizer):
                expected, other = plain("gpt2")
                updates = []
                for net, steps in ((expected, other), (model, optimizer)):
                    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
                    for number in range(3):
                        torch.manual_seed(number)
                        loss = tiny_models.loss_of(net(**tiny_models.batch("gpt2", number)))
                        scaler.scale(loss * (float("inf") if number == 1 else 1)).backward()
                        if unscales:
                            scaler.unscale_(steps)
                            torch.nn.utils.clip_grad_norm_(net.parameters(), 0.05)
                        scaler.step(steps)
                        scaler.update()
                        steps.zero_grad()
                    updates.append(scaler.get_scale())
                self.assertEqual(updates, [512.0, 512.0])
                self.assertEqual(optimizer.updates, 2)
                self.assertTrue(equal_weights(expected, model))


if __name__ == "__main__":
    unittest.main()
