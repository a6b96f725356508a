"""Loops around a module whose parameters are penstock's: what people do between two steps."""

from __future__ import annotations

import functools
import unittest
from typing import Any

import penstock
import tiny_models
import torch
from level2_support import backward, equal_weights, plain, step, training
from warning_support import warned


class _Interrupted(Exception):
    pass


class _Smooth(torch.nn.Module):
    """Blocks that can be differentiated twice, and more of them than have their weights at once."""

    class Block(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.down = torch.nn.Linear(16, 16), torch.nn.Linear(16, 16)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.down(torch.tanh(self.up(x)))

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.ModuleList(self.Block() for _ in range(8))
        self.out = torch.nn.Linear(16, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        out: torch.Tensor = self.out(x)
        return out


def _raise_at(module: torch.nn.Module, error: type[BaseException]) -> Any:
    def hook(*_: Any) -> None:
        raise error

    return module.register_forward_pre_hook(hook)


class Loop(unittest.TestCase):
    """Steps continue as if nothing had been in between."""

    def same_after(self, name: str, between: Any, steps: int = 3, **options: Any) -> None:
        """Trains both ways, with ``between(model, optimizer, number)`` before each step of ours."""
        expected, other = plain(name, options.get("checkpoint"))
        with training(name, **options) as (model, optimizer):
            for number in range(steps):
                between(model, optimizer, number)
                want = step(expected, other, name, number)
                self.assertTrue(torch.equal(want, step(model, optimizer, name, number)))
            self.assertTrue(equal_weights(expected, model))

    def test_evaluation_between_steps_changes_nothing(self) -> None:
        def evaluate(model: Any, optimizer: Any, number: int) -> None:
            model.eval()
            with torch.no_grad():
                loss = tiny_models.loss_of(model(**tiny_models.batch("t5", 100)))
            self.assertTrue(torch.isfinite(loss))
            with torch.inference_mode():
                again = tiny_models.loss_of(model(**tiny_models.batch("t5", 100)))
            self.assertEqual(loss.item(), again.item())
            model.train()

        self.same_after("t5", evaluate)

    def test_generate_between_steps_gives_what_plain_weights_give(self) -> None:
        for name in ("llama", "t5", "lora"):
            expected, other = plain(name)
            ids = tiny_models.batch(name, 0)["input_ids"]
            with training(name) as (model, optimizer):
                for number in range(2):
                    for each in (expected, model):
                        each.eval()
                    arguments = {"max_new_tokens": 4, "do_sample": False, "use_cache": True}
                    want = expected.generate(input_ids=ids, **arguments)
                    self.assertTrue(
                        torch.equal(want, model.generate(input_ids=ids, **arguments)), name
                    )
                    for each in (expected, model):
                        each.train()
                    step(expected, other, name, number)
                    step(model, optimizer, name, number)

    def test_a_step_after_an_exception_in_forward_is_whole(self) -> None:
        def interrupt(error: Any, model: Any, optimizer: Any, number: int) -> None:
            handle = _raise_at(model.transformer.h[number].mlp, error)
            with self.assertRaises(error):
                backward(model, "gpt2", 50)
            handle.remove()

        for error in (_Interrupted, KeyboardInterrupt):
            for checkpoint in (None, True, False):
                between = functools.partial(interrupt, error)
                self.same_after("gpt2", between, checkpoint=checkpoint)

    def test_a_step_after_an_exception_in_backward_is_whole(self) -> None:
        def interrupt(error: Any, model: Any, optimizer: Any, number: int) -> None:
            def stop(gradient: torch.Tensor) -> None:
                raise error

            def watch(module: Any, args: Any, output: Any) -> None:
                (output if isinstance(output, torch.Tensor) else output[0]).register_hook(stop)

            handle = model.transformer.h[1].register_forward_hook(watch)
            with self.assertRaises(error):
                backward(model, "gpt2", 50)
            handle.remove()
            optimizer.zero_grad()

        for error in (_Interrupted, KeyboardInterrupt):
            self.same_after("gpt2", functools.partial(interrupt, error))

    def test_gradients_that_an_exception_left_are_refused_until_zero_grad(self) -> None:
        with training("odd") as (model, optimizer):
            backward(model, "odd", 0)
            with self.assertRaisesRegex(penstock.InvalidArgumentError, "gradient_accumulation"):
                backward(model, "odd", 1)
            model.zero_grad()
            step(model, optimizer, "odd", 2)

    def test_gradients_of_autograd_grad_are_taken_from_where_they_were_put(self) -> None:
        expected, other = plain("odd")
        with training("odd") as (model, optimizer):
            for each, steps in ((expected, other), (model, optimizer)):
                loss = tiny_models.loss_of(each(**tiny_models.batch("odd", 0)))
                parameters = list(each.parameters())
                for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters)):
                    parameter.grad = gradient
                steps.step()
            self.assertTrue(equal_weights(expected, model))

    def test_gradients_that_were_put_before_the_first_forward_are_taken(self) -> None:
        expected, other = plain("odd")
        with training("odd") as (model, optimizer):
            for each, steps in ((expected, other), (model, optimizer)):
                for parameter in each.parameters():
                    parameter.grad = torch.ones_like(parameter)
                steps.step()
            self.assertTrue(equal_weights(expected, model))

    def test_a_forward_that_is_never_followed_by_backward_changes_nothing(self) -> None:
        def forward(model: Any, optimizer: Any, number: int) -> None:
            torch.manual_seed(number)
            model(**tiny_models.batch("mixtral", 70))

        self.same_after("mixtral", forward)

    def test_two_forwards_before_one_backward_equal_plain_memory(self) -> None:
        for checkpoint in (None, True, False):
            expected, other = plain("llama", checkpoint)
            with training("llama", checkpoint=checkpoint) as (model, optimizer):
                for number in range(3):
                    for each, steps in ((expected, other), (model, optimizer)):
                        batches = (tiny_models.batch("llama", 2 * number + i) for i in range(2))
                        sum(tiny_models.loss_of(each(**batch)) for batch in batches).backward()
                        steps.step()
                        steps.zero_grad()
                self.assertTrue(equal_weights(expected, model), checkpoint)

    def test_a_backward_through_a_backward_equals_plain_memory(self) -> None:
        def penalty(model: torch.nn.Module, optimizer: Any, number: int) -> torch.Tensor:
            torch.manual_seed(number)
            x = torch.randn(8, 16, requires_grad=True)
            y = model(x)
            (slope,) = torch.autograd.grad(y.sum(), x, create_graph=True)
            loss: torch.Tensor = (slope.norm(dim=1) - 1).square().mean() + y.square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss.detach()

        expected = _Smooth()
        other = penstock.reference.AdamW(expected.parameters(), lr=1e-3, weight_decay=0.1)
        with training(model=_Smooth()) as (model, optimizer):
            for number in range(3):
                want = penalty(expected, other, number)
                self.assertTrue(torch.equal(want, penalty(model, optimizer, number)), number)
            self.assertTrue(equal_weights(expected, model))

    def test_a_backward_over_a_graph_from_before_the_step_is_refused(self) -> None:
        for home in ("nvme", "host", "device"):
            x = torch.ones(4, 16)
            with training(home=home, model=_Smooth()) as (model, optimizer):
                loss = model(x).square().mean()
                loss.backward(retain_graph=True)
                optimizer.step()
                with self.assertRaisesRegex(RuntimeError, "modified by an inplace operation"):
                    loss.backward()
                optimizer.zero_grad()
                model(x).square().mean().backward()
                optimizer.step()
                self.assertEqual(optimizer.steps, 2)

    def test_clipping_equals_the_reference(self) -> None:
        expected, other = plain("gpt2", max_norm=0.05)
        other._cut["model"] = expected
        with training("gpt2", more={"gradient_clipping": 0.05}) as (model, optimizer):
            for number in range(3):
                step(expected, other, "gpt2", number)
                step(model, optimizer, "gpt2", number)
                self.assertEqual(other.grad_norm, optimizer.grad_norm)
            self.assertTrue(equal_weights(expected, model))

    def test_clip_grad_norm_clips_the_step_and_returns_the_norm(self) -> None:
        expected, other = plain("gpt2", max_norm=0.05)
        other._cut["model"] = expected
        with training("gpt2") as (model, optimizer):
            step(expected, other, "gpt2", 0)
            torch.manual_seed(0)
            backward(model, "gpt2", 0)
            norm = penstock.clip_grad_norm_(model, 0.05)
            optimizer.step()
            self.assertEqual(norm.item(), torch.tensor(other.grad_norm).item())
            self.assertTrue(equal_weights(expected, model))

    def test_a_step_that_raises_keeps_its_clip(self) -> None:
        expected, other = plain("odd", max_norm=0.05)
        other._cut["model"] = expected
        with training("odd") as (model, optimizer):
            step(expected, other, "odd", 0)
            torch.manual_seed(0)
            backward(model, "odd", 0)
            optimizer.clip_grad_norm_(0.05)
            rate, optimizer.param_groups[0]["lr"] = optimizer.param_groups[0]["lr"], None
            with self.assertRaisesRegex(penstock.InvalidArgumentError, "lr of a parameter group"):
                optimizer.step()
            optimizer.param_groups[0]["lr"] = rate
            optimizer.step()
            self.assertTrue(equal_weights(expected, model))

    def test_schedulers_and_groups_are_read_at_each_step(self) -> None:
        results = []

        def groups(model: torch.nn.Module) -> list[dict[str, Any]]:
            flat = [p for p in model.parameters() if p.dim() < 2]
            rest = [p for p in model.parameters() if p.dim() >= 2]
            return [
                {"params": rest, "lr": 2e-3, "betas": (0.8, 0.9)},
                {"params": flat, "weight_decay": 0.0},
            ]

        def train(model: torch.nn.Module, optimizer: Any) -> None:
            scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5**step)
            for number in range(3):
                step(model, optimizer, "llama", number)
                scheduler.step()
            results.append({k: v.clone() for k, v in model.state_dict().items()})

        expected = tiny_models.make("llama")
        train(expected, penstock.reference.AdamW(groups(expected), lr=1e-3, weight_decay=0.1))
        made = tiny_models.make("llama")
        with training(model=made, model_parameters=groups(made)) as (model, optimizer):
            train(model, optimizer)
        first, second = results
        self.assertTrue(all(torch.equal(first[key], second[key]) for key in first))

    def test_parameters_without_a_gradient_are_named_or_zero(self) -> None:
        class Unused(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.used, self.idle = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return self.used(x).sum()

        with training(model=Unused()) as (model, optimizer):
            model(torch.ones(1, 4)).backward()
            with self.assertRaisesRegex(penstock.InvalidArgumentError, "idle.weight, idle.bias"):
                optimizer.step()
        ours = {"penstock": {"missing_gradients": "zero", "tile_elements": 4096}}
        with training(model=Unused(), more=ours) as (model, optimizer):
            before = model.state_dict()
            model(torch.ones(1, 4)).backward()
            optimizer.step()
            after = model.state_dict()
            self.assertFalse(torch.equal(before["used.weight"], after["used.weight"]))
            self.assertTrue(torch.isfinite(after["idle.weight"]).all())

    def test_a_step_that_is_not_finite_is_skipped_and_said(self) -> None:
        with training("odd") as (model, optimizer):
            step(model, optimizer, "odd", 0)
            before = model.state_dict()
            (model(**tiny_models.batch("odd", 1)) * float("inf")).backward()
            with warned(self, "step 2 was skipped"):
                optimizer.step()
            self.assertTrue(optimizer.skipped)
            after = model.state_dict()
            self.assertTrue(all(torch.equal(before[key], after[key]) for key in before))

    def test_a_step_without_any_gradient_does_nothing(self) -> None:
        with training("odd") as (model, optimizer):
            optimizer.step()
            self.assertEqual(optimizer.steps, 0)
            step(model, optimizer, "odd", 0)
            self.assertEqual(optimizer.steps, 1)

    def test_a_closure_is_called(self) -> None:
        with training("odd") as (model, optimizer):
            loss = optimizer.step(lambda: backward(model, "odd", 0))
            self.assertTrue(torch.isfinite(loss))
            self.assertEqual(optimizer.steps, 1)

    def test_blocks_may_be_compiled(self) -> None:
        for checkpoint in (None, False):
            expected, other = plain("llama", checkpoint)
            with training("llama", checkpoint=checkpoint) as (model, optimizer):
                for each in (expected, model):
                    for layer in each.model.layers:
                        layer.compile(backend="aot_eager")
                for number in range(3):
                    want = step(expected, other, "llama", number)
                    got = step(model, optimizer, "llama", number)
                    self.assertTrue(torch.equal(want, got))
                self.assertTrue(equal_weights(expected, model))

    def test_a_module_that_ran_compiled_before_trains_with_its_hooks(self) -> None:
        expected, other = plain("odd")
        module = tiny_models.make("odd")
        compiled = torch.compile(module, backend="eager")
        backward(compiled, "odd", 9)
        module.zero_grad()
        with training("odd", model=module) as (model, optimizer):
            for number in range(3):
                want = step(expected, other, "odd", number)
                self.assertTrue(torch.equal(want, step(compiled, optimizer, "odd", number)))
            self.assertTrue(equal_weights(expected, model))


if __name__ == "__main__":
    unittest.main()
