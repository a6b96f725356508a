"""Placement changes nothing: trainings equal those of penstock.reference in plain memory."""

from __future__ import annotations

import unittest

import optimizer_support as support
import penstock
import torch
from optimizer_support import RULES, OptimizerTest, decay_groups, tower, train
from penstock import reference


def cosine(optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
    return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)


class OptimizersEqualTheirReferences(OptimizerTest):
    def compare(
        self, rule: str, where: str, dtype: torch.dtype, late: bool, steps: int = 6
    ) -> None:
        """Groups with options of their own, a scheduler, and clipping by the engine."""
        mine, other = tower(dtype), tower(dtype)
        optimizer = self.make(
            decay_groups(mine), rule, where, lr=1e-2, max_norm=0.7, model=mine if late else None
        )
        plain = getattr(reference, rule)(
            decay_groups(other),
            lr=1e-2,
            max_norm=0.7,
            model=other if late else None,
        )
        losses = train(mine, optimizer, steps, cosine(optimizer))
        self.assertEqual(losses, train(other, plain, steps, cosine(plain)))
        self.assertEqual(optimizer.grad_norm, plain.grad_norm)
        optimizer.synchronize()
        self.assert_same_weights(mine, other)
        counters = optimizer._training.engine.counters()
        self.assertEqual(counters["nvme_read_bytes"] > 0, where != "host", counters)
        self.assertEqual(counters["late_uses"], 0)

    def test_all_placements_have_the_same_bits(self) -> None:
        for where in ("host", "nvme", "split"):
            for dtype in (torch.float32, torch.bfloat16):
                for late in (False, True):
                    with self.subTest(where=where, dtype=dtype, late=late):
                        self.compare("AdamW", where, dtype, late)

    def test_all_rules_and_dtypes_have_the_same_bits(self) -> None:
        for rule in RULES:
            for dtype in (torch.float32, torch.bfloat16, torch.float16):
                with self.subTest(rule=rule, dtype=dtype):
                    self.compare(rule, "nvme", dtype, late=True, steps=3)

    def test_dtypes_may_be_mixed_within_a_group_and_a_module(self) -> None:
        models = [tower(torch.bfloat16), tower(torch.bfloat16)]
        for model in models:
            for block in model.blocks:
                block.norm.float()
                block.norm.register_forward_pre_hook(lambda _, x: (x[0].float(),))
                block.norm.register_forward_hook(lambda _, x, y: y.to(torch.bfloat16))
        optimizer = self.make(models[0].parameters(), model=models[0])
        plain = reference.AdamW(models[1].parameters(), model=models[1])
        self.assertEqual(train(models[0], optimizer), train(models[1], plain))
        optimizer.synchronize()
        self.assert_same_weights(*models)

    def test_clipping_by_torch_has_the_same_bits(self) -> None:
        mine, other = tower(), tower()
        optimizer = self.make(mine.parameters())
        plain = reference.AdamW(other.parameters())
        self.assertEqual(train(mine, optimizer, clip=0.5), train(other, plain, clip=0.5))
        self.assert_same_weights(mine, other)

    def test_torch_agrees_to_rounding_over_20_steps(self) -> None:
        for rule in ("AdamW", "Adam", "Adagrad"):
            with self.subTest(rule=rule):
                mine, other = tower(), tower()
                optimizer = self.make(decay_groups(mine), rule, "nvme", lr=1e-3)
                plain = getattr(torch.optim, rule)(decay_groups(other), lr=1e-3)
                losses = train(mine, optimizer, 20, cosine(optimizer), clip=1.0)
                for one, two in zip(losses, train(other, plain, 20, cosine(plain), clip=1.0)):
                    self.assertLessEqual(abs(one - two), 1e-5 * abs(two))

    def test_accumulation_takes_the_gradient_that_torch_has_summed(self) -> None:
        def run(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> list[float]:
            generator = torch.Generator().manual_seed(3)
            losses = []
            for micro_batch in range(9):
                loss = support.loss_of(model, generator)
                (loss / 3).backward()
                losses.append(loss.item())
                if micro_batch % 3 == 2:
                    optimizer.step()
                    optimizer.zero_grad(set_to_none=micro_batch < 5)
            return losses

        mine, other = tower(torch.bfloat16), tower(torch.bfloat16)
        optimizer = self.make(mine.parameters(), model=mine)
        plain = reference.AdamW(other.parameters())
        self.assertEqual(run(mine, optimizer), run(other, plain))

    def test_weights_that_a_module_uses_of_another_are_the_new_ones(self) -> None:
        """MultiheadAttention reads out_proj.weight and never calls out_proj."""

        class Attends(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.embedding = torch.nn.Embedding(50, 32)
                self.attention = torch.nn.MultiheadAttention(32, 4, batch_first=True)
                self.aside = torch.nn.Linear(32, 32)

            def forward(self, tokens: torch.Tensor) -> torch.Tensor:
                x = self.embedding(tokens)
                x = x + self.attention(x, x, x, need_weights=False)[0]
                x = torch.nn.functional.linear(x, self.aside.weight, self.aside.bias)
                return torch.nn.functional.linear(x, self.embedding.weight)

        torch.manual_seed(5)
        mine = Attends()
        torch.manual_seed(5)
        other = Attends()
        optimizer = self.make(mine.parameters(), model=mine)
        plain = reference.AdamW(other.parameters(), model=other)
        self.assertEqual(train(mine, optimizer, 5), train(other, plain, 5))


class TheReferenceIsThatOfTheEngine(OptimizerTest):
    def test_micro_batches_are_summed_in_fp32_and_rounded_once(self) -> None:
        model = torch.nn.Linear(3, 1, bias=False).to(torch.bfloat16)
        plain = reference.AdamW(model.parameters())
        for value in (1.0, 2**-9, 2**-9):  # in bf16, 1 + 2**-9 is 1
            model.weight.grad = torch.full((1, 3), value, dtype=torch.bfloat16)
            plain.micro_batch()
        entry = next(iter(plain._parts().entries()))
        expected = torch.tensor(1 + 2**-8).to(torch.bfloat16)
        self.assertTrue(torch.equal(plain._gradient(entry), expected.expand(1, 3)))

    def test_a_gradient_that_is_not_finite_changes_nothing(self) -> None:
        model = tower()
        plain = reference.AdamW(model.parameters())
        before = support.weights(model)
        for parameter in model.parameters():
            parameter.grad = torch.full_like(parameter, float("inf"))
        plain.step()
        self.assertTrue(plain.skipped)
        for old, new in zip(before, model.parameters()):
            self.assertTrue(torch.equal(old, new))

    def test_a_saved_reference_resumes_with_the_same_bits(self) -> None:
        mine, other = tower(torch.bfloat16), tower(torch.bfloat16)
        one = reference.AdamW(mine.parameters())
        two = reference.AdamW(other.parameters())
        train(mine, one, 3)
        train(other, two, 3)
        again = reference.AdamW(other.parameters())
        again.load_state_dict(two.state_dict())
        self.assertEqual(train(mine, one, 3, seed=2), train(other, again, 3, seed=2))

    def test_all_names_are_there(self) -> None:
        for rule in RULES:
            self.assertTrue(issubclass(getattr(penstock, rule), torch.optim.Optimizer))
            self.assertTrue(issubclass(getattr(penstock.reference, rule), torch.optim.Optimizer))


if __name__ == "__main__":
    unittest.main()
