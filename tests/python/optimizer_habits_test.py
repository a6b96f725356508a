"""The optimizers have the habits of torch.optim.Optimizer."""

from __future__ import annotations

import copy
import gc
import logging
import os
import pickle
import unittest
import warnings
import weakref
from typing import Any

import optimizer_support as support
import penstock
import torch
from optimizer_support import OptimizerTest, decay_groups, loss_of, tower, train
from penstock import reference
from torch.utils.checkpoint import checkpoint
from warning_support import warned


class TorchLoopsWorkUnchanged(OptimizerTest):
    def test_a_closure_is_evaluated_with_gradients(self) -> None:
        losses = []
        for make in (
            lambda model: self.make(model.parameters()),
            lambda model: reference.AdamW(model.parameters()),
        ):
            model = tower()
            optimizer = make(model)
            generator = torch.Generator().manual_seed(1)

            def closure(model=model, optimizer=optimizer, generator=generator) -> torch.Tensor:
                optimizer.zero_grad()
                loss = loss_of(model, generator)
                loss.backward()
                return loss

            losses.append([optimizer.step(closure).item() for _ in range(4)])
        self.assertEqual(*losses)

    def test_a_grad_scaler_scales_skips_and_grows(self) -> None:
        for dtype in (torch.float32, torch.float16):
            with self.subTest(dtype=dtype):
                mine, other = tower(dtype), tower(dtype)
                optimizer = self.make(mine.parameters(), max_norm=1.0, model=mine)
                plain = reference.AdamW(other.parameters(), max_norm=1.0, model=other)
                rows = self.scaled(mine, optimizer)
                self.assertEqual(rows, self.scaled(other, plain))
                self.assertEqual([skipped for _, _, skipped in rows].count(True), 1)
                self.assertEqual(optimizer.steps, 6)
                optimizer.synchronize()
                self.assert_same_weights(mine, other)

    def scaled(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> list[tuple]:
        scaler = torch.amp.GradScaler("cpu", init_scale=256.0, growth_interval=2)
        generator = torch.Generator().manual_seed(1)
        rows = []
        for step in range(6):
            loss = loss_of(model, generator)
            scaler.scale(loss).backward()
            if step == 3:
                next(model.parameters()).grad[0, 0] = float("inf")
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            rows.append((loss.item(), scaler.get_scale(), optimizer.skipped))
        return rows

    def test_unscale_and_clip_by_torch_before_a_scaler_s_step(self) -> None:
        models = [tower(), tower()]
        optimizers = [
            self.make(models[0].parameters()),
            reference.AdamW(models[1].parameters()),
        ]
        losses = []
        for model, optimizer in zip(models, optimizers):
            scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
            generator = torch.Generator().manual_seed(1)
            losses.append([])
            for _ in range(4):
                loss = loss_of(model, generator)
                scaler.scale(loss).backward()
                scaler.unscale_(optimizer)
                torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
                losses[-1].append(loss.item())
        self.assertEqual(*losses)

    def test_named_parameters_give_names(self) -> None:
        model = tower()
        optimizer = self.make(model.named_parameters())
        train(model, optimizer, 1)
        names = [name for name, _, _ in optimizer.states()]
        self.assertEqual(names, [name for name, _ in model.named_parameters()])

    def test_a_gradient_that_is_not_finite_is_skipped_with_a_warning(self) -> None:
        model = tower()
        optimizer = self.make(model.parameters(), model=model)
        train(model, optimizer, 2)
        optimizer.synchronize()
        before = support.weights(model)
        for parameter in model.parameters():
            parameter.grad = torch.full_like(parameter, float("nan"))
        with warned(self, "gradient of step 3 is not finite"):
            optimizer.step()
        self.assertTrue(optimizer.skipped)
        for old, new in zip(before, model.parameters()):
            self.assertTrue(torch.equal(old, new))
        optimizer.zero_grad()
        train(model, optimizer, 1)
        self.assertFalse(optimizer.skipped)

    def test_a_step_without_any_gradient_does_nothing(self) -> None:
        model = tower()
        optimizer = self.make(model.parameters())
        optimizer.step()
        self.assertEqual(optimizer.steps, 0)

    def test_missing_gradients_are_zeros_if_asked_for(self) -> None:
        mine, other = tower(), tower()
        optimizer = self.make(mine.parameters(), missing_gradients="zero")
        plain = reference.AdamW(other.parameters(), missing_gradients="zero")
        for model, one in ((mine, optimizer), (other, plain)):
            model.norm.weight.sum().backward()
            one.step()
        self.assert_same_weights(mine, other)

    def test_frozen_parameters_in_the_groups_stay_as_they_are(self) -> None:
        model = tower()
        model.embedding.requires_grad_(False)
        before = model.embedding.weight.clone()
        optimizer = self.make(model.parameters(), model=model)
        train(model, optimizer, 2)
        self.assertTrue(torch.equal(before, model.embedding.weight))

    def test_groups_are_added_before_the_first_step(self) -> None:
        mine, other = tower(), tower()
        optimizer = self.make(decay_groups(mine)[:1])
        optimizer.add_param_group(decay_groups(mine)[1])
        plain = reference.AdamW(decay_groups(other))
        self.assertEqual(train(mine, optimizer), train(other, plain))

    def test_step_hooks_of_torch_are_called(self) -> None:
        model = tower()
        optimizer = self.make(model.parameters())
        called = []
        optimizer.register_step_pre_hook(lambda *_: called.append("before"))
        optimizer.register_step_post_hook(lambda *_: called.append("after"))
        train(model, optimizer, 1)
        self.assertEqual(called, ["before", "after"])

    def test_parameters_that_are_not_contiguous_are_trained(self) -> None:
        models = []
        for _ in range(2):
            torch.manual_seed(0)
            model = torch.nn.Conv2d(3, 8, 3).to(memory_format=torch.channels_last)
            models.append(model)
        optimizer = self.make(models[0].parameters())
        plain = reference.AdamW(models[1].parameters())
        images = torch.randn(2, 3, 8, 8).to(memory_format=torch.channels_last)
        for _ in range(3):
            for model, one in zip(models, (optimizer, plain)):
                model(images).square().mean().backward()
                one.step()
                one.zero_grad()
        self.assertFalse(models[0].weight.is_contiguous())
        self.assert_same_weights(*models)

    def test_the_representation_is_that_of_torch(self) -> None:
        optimizer = self.make(tower().parameters(), lr=0.25)
        self.assertIn("lr: 0.25", repr(optimizer))


class WeightsComeUnderTheNextForward(OptimizerTest):
    def stepped(self) -> tuple[torch.nn.Module, penstock.optim.OffloadedOptimizer]:
        model = tower()
        optimizer = self.make(model.parameters(), model=model)
        train(model, optimizer, 2)
        return model, optimizer

    def expected(self) -> torch.nn.Module:
        model = tower()
        train(model, reference.AdamW(model.parameters(), model=model), 2)
        return model

    def test_a_parameter_that_waits_holds_nan(self) -> None:
        model, optimizer = self.stepped()
        for parameter in model.parameters():
            self.assertTrue(parameter.isnan().all())
        optimizer.synchronize()
        self.assert_same_weights(model, self.expected())

    def test_a_module_waits_for_its_own_weights_and_no_others(self) -> None:
        model, _ = self.stepped()
        model.blocks[1](torch.randn(2, 48))
        for name, parameter in model.named_parameters():
            brought = name.startswith("blocks.1.")
            self.assertEqual(bool(parameter.isnan().any()), not brought, name)

    def test_a_look_at_the_dtype_or_shape_of_a_weight_does_not_wait_for_it(self) -> None:
        class Looks(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.first, self.last = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                x = self.first(x.to(self.last.weight.dtype))
                return self.last(x[:, : self.last.weight.size(1)]).square().mean()

        model = Looks()
        optimizer = self.make(model.parameters(), model=model)
        for _ in range(3):  # in the first two, uses of weights are learned
            model(torch.ones(2, 4)).backward()
            optimizer.step()
            optimizer.zero_grad()
        waiting = []
        model.first.register_forward_hook(
            lambda *_: waiting.append(bool(model.last.weight.isnan().all()))
        )
        self.assertTrue(torch.isfinite(model(torch.ones(2, 4))))
        self.assertEqual(waiting, [True])

    def test_evaluation_between_steps_changes_nothing(self) -> None:
        mine, other = tower(), tower()
        optimizer = self.make(mine.parameters(), model=mine)
        plain = reference.AdamW(other.parameters(), model=other)
        for seed in range(3):
            losses = []
            for model, one in ((mine, optimizer), (other, plain)):
                losses.append(train(model, one, 2, seed=seed))
                with torch.no_grad() if seed else torch.inference_mode():
                    losses[-1].append(loss_of(model, torch.Generator()).item())
            self.assertEqual(*losses)

    def test_state_dict_of_a_part_of_the_module_has_the_weights(self) -> None:
        model, _ = self.stepped()
        expected = self.expected().state_dict()
        for name, value in model.blocks.state_dict(prefix="blocks.").items():
            self.assertTrue(torch.equal(value, expected[name]), name)
        for name, value in model.state_dict().items():
            self.assertTrue(torch.equal(value, expected[name]), name)

    def test_an_exception_in_a_forward_leaves_the_next_one_right(self) -> None:
        mine, other = tower(), tower()
        optimizer = self.make(mine.parameters(), model=mine)
        plain = reference.AdamW(other.parameters(), model=other)
        losses = []
        for model, one in ((mine, optimizer), (other, plain)):
            for _ in range(2):
                handle = model.blocks[1].register_forward_hook(self.interrupt)
                with self.assertRaises(KeyboardInterrupt):
                    train(model, one, 1)
                handle.remove()
                losses.append(train(model, one, 2))
        self.assertEqual(losses[:2], losses[2:])
        self.assertEqual(torch.overrides._len_torch_function_stack(), 0)

    @staticmethod
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    def test_a_copy_and_a_pickle_of_the_module_have_no_hooks_of_ours(self) -> None:
        model, optimizer = self.stepped()
        optimizer.synchronize()
        twin = copy.deepcopy(model)
        path = os.path.join(self.folder, "model.pt")
        torch.save(model, path)
        loaded = torch.load(path, weights_only=False)
        train(model, optimizer, 1)
        tokens = torch.zeros(1, 4, dtype=torch.int64)
        self.assertTrue(torch.equal(twin(tokens), loaded(tokens)))
        self.assertFalse(twin(tokens).isnan().any())

    def test_parameters_outside_of_the_module_are_back_after_the_step(self) -> None:
        model = tower()
        scale = torch.nn.Parameter(torch.ones(3))
        optimizer = self.make([*model.parameters(), scale], model=model)
        (loss_of(model, torch.Generator()) * scale.sum()).backward()
        optimizer.step()
        self.assertFalse(scale.isnan().any())
        self.assertFalse(scale.eq(1).any())
        self.assertTrue(model.norm.weight.isnan().all())

    def test_a_graph_from_before_the_step_is_refused_by_autograd(self) -> None:
        for late in (False, True):
            model = tower()
            optimizer = self.make(model.parameters(), model=model if late else None)
            loss = loss_of(model, torch.Generator())
            loss.backward(retain_graph=True)
            optimizer.step()
            optimizer.synchronize()
            with self.assertRaisesRegex(RuntimeError, "modified by an inplace operation"):
                loss.backward()

    def test_gradients_of_any_form_are_taken_by_their_values(self) -> None:
        weight = torch.nn.Parameter(torch.ones(4, 6))
        same = torch.nn.Parameter(torch.ones(4, 6))
        values = torch.arange(24.0).view(4, 6) - 7
        complex_values = torch.complex(torch.zeros(4, 6), -values)
        forms = {
            "negated": complex_values.conj().imag,
            "sparse": values.to_sparse(),
            "transposed": values.t().contiguous().t(),
            "expanded": values[:1].expand(4, 6),
        }
        self.assertTrue(forms["negated"].is_neg())
        optimizer = self.make([weight])
        other = reference.AdamW([same])
        for name, gradient in forms.items():
            weight.grad, same.grad = gradient, gradient.to_dense().resolve_neg().contiguous()
            optimizer.step()
            other.step()
            self.assertTrue(torch.equal(weight, same), name)

    def test_a_parameter_without_elements_takes_part(self) -> None:
        empty, other = torch.nn.Parameter(torch.empty(0, 3)), torch.nn.Parameter(torch.ones(3))
        optimizer = self.make([empty, other])
        for _ in range(2):
            (other.sum() + empty.sum()).backward()
            optimizer.step()
            optimizer.zero_grad()
        self.assertEqual(optimizer.steps, 2)

    def test_copies_and_pickles_of_the_module_have_the_new_weights(self) -> None:
        for copied in (
            copy.deepcopy,
            lambda model: pickle.loads(pickle.dumps(model)),
            lambda model: torch.optim.swa_utils.AveragedModel(model).module,
        ):
            model, optimizer = self.stepped()
            self.assertTrue(model.norm.weight.isnan().all())
            made = copied(model)
            self.assert_same_weights(made, self.expected())
            self.assertNotIn("__deepcopy__", made.norm.weight.__dict__)
            train(model, optimizer, 1)
            again = copied(made)  # belongs to no optimizer
            self.assert_same_weights(again, self.expected())
            optimizer.close()
            self.assertNotIn("__deepcopy__", model.norm.weight.__dict__)

    def test_closing_leaves_the_module_whole_and_without_hooks(self) -> None:
        model, optimizer = self.stepped()
        optimizer.close()
        self.assert_same_weights(model, self.expected())
        self.assertFalse(any(m._forward_pre_hooks or m._forward_hooks for m in model.modules()))

    def test_a_forgotten_optimizer_leaves_the_module_whole(self) -> None:
        model = tower()
        optimizer = penstock.AdamW(model.parameters(), model=model, **self.placement("nvme"))
        train(model, optimizer, 2)
        gone = weakref.ref(optimizer)
        del optimizer
        gc.collect()
        self.assertIsNone(gone())
        self.assert_same_weights(model, self.expected())
        self.assertEqual(os.listdir(self.folder), [])

    @staticmethod
    def checkpointed(forward: Any, reentrant: bool) -> Any:
        return lambda x: checkpoint(forward, x, use_reentrant=reentrant)

    def test_gradient_checkpointing_computes_with_the_new_weights(self) -> None:
        for reentrant in (True, False):
            losses = []
            for make in (
                lambda m: self.make(m.parameters(), model=m),
                lambda m: reference.AdamW(m.parameters(), model=m),
            ):
                model = tower(dropout=0.1)
                for block in model.blocks:
                    block.inner = block.forward
                    block.forward = self.checkpointed(block.inner, reentrant)
                optimizer = make(model)
                torch.manual_seed(7)
                losses.append(train(model, optimizer, 4))
            self.assertEqual(*losses)

    def test_compiled_blocks_and_modules_compute_with_the_new_weights(self) -> None:
        warnings.simplefilter("ignore")
        logging.getLogger("torch._dynamo").setLevel(logging.ERROR)
        expected = tower()
        plain = reference.AdamW(expected.parameters(), model=expected)
        losses = train(expected, plain, 4)
        for whole in (False, True):
            model = tower()
            optimizer = self.make(model.parameters(), model=model)
            compiled = torch.compile(model, backend="eager") if whole else model
            for block in () if whole else model.blocks:
                block.compile(backend="eager")
            self.assertEqual(train(compiled, optimizer, 4), losses)


class SeveralOptimizersShareAProcess(OptimizerTest):
    def test_two_optimizers_train_two_modules(self) -> None:
        models = [tower(), tower(torch.bfloat16)]
        others = [tower(), tower(torch.bfloat16)]
        mine = [self.make(m.parameters(), model=m) for m in models]
        plain = [reference.AdamW(m.parameters(), model=m) for m in others]
        for seed in range(3):
            for i in range(2):
                self.assertEqual(
                    train(models[i], mine[i], 1, seed=seed),
                    train(others[i], plain[i], 1, seed=seed),
                )

    def test_a_new_optimizer_resumes_from_a_closed_one(self) -> None:
        model, other = tower(), tower()
        for seed in range(2):
            optimizer = self.make(model.parameters(), model=model)
            plain = reference.AdamW(other.parameters(), model=other)
            self.assertEqual(
                train(model, optimizer, 2, seed=seed), train(other, plain, 2, seed=seed)
            )
            optimizer.close()

    def test_a_freed_module_and_optimizer_leave_no_files(self) -> None:
        for _ in range(3):
            model = tower()
            optimizer = penstock.AdamW(model.parameters(), **self.placement("nvme"))
            train(model, optimizer, 1)
            del model, optimizer
            gc.collect()
        self.assertEqual(os.listdir(self.folder), [])


if __name__ == "__main__":
    unittest.main()
