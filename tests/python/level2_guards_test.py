"""What people do to a module after penstock.initialize: the right result, or one clear exception."""

from __future__ import annotations

import contextlib
import copy
import gc
import io
import os
import pickle
import shutil
import tempfile
import unittest
from typing import Any
from unittest import mock

import matrix
import penstock
import tiny_models
import torch
from level2_support import backward, equal_weights, plain, step, training

_Refused = penstock.InvalidArgumentError


def _trained(name: str, model: Any, optimizer: Any) -> Any:
    """Makes a step, and the same in plain memory, whose module is returned."""
    expected, other = plain(name)
    step(expected, other, name, 0)
    step(model, optimizer, name, 0)
    return expected


class Reading(unittest.TestCase):
    def test_state_dict_has_the_weights_and_keeps_ties(self) -> None:
        with training("gpt2") as (model, optimizer):
            expected = _trained("gpt2", model, optimizer)
            state = model.state_dict()
            self.assertTrue(equal_weights(expected, model))
            self.assertIs(state["lm_head.weight"], state["transformer.wte.weight"])
            inner = model.transformer.h[1].state_dict()
            want = expected.transformer.h[1].state_dict()
            self.assertTrue(all(torch.equal(inner[key], want[key]) for key in want))
            buffer = io.BytesIO()
            torch.save(state, buffer)
            buffer.seek(0)
            read = torch.load(buffer, weights_only=True)
            self.assertTrue(torch.equal(read["lm_head.weight"], state["lm_head.weight"]))

    def test_state_dict_follows_steps_even_into_the_same_dictionary(self) -> None:
        with training("odd") as (model, optimizer):
            expected, other = plain("odd")
            state: dict[str, Any] = model.state_dict()
            for number in range(2):
                step(expected, other, "odd", number)
                step(model, optimizer, "odd", number)
                model.state_dict(destination=state)
                want = expected.state_dict()
                self.assertTrue(all(torch.equal(want[key], state[key]) for key in want))

    def test_state_dict_has_the_engines_weights_though_a_parameter_shows_another_shape(
        self,
    ) -> None:
        with training("gpt2") as (model, optimizer):
            expected = _trained("gpt2", model, optimizer)
            bias = model.transformer.h[0].mlp.c_fc.bias
            bias.data = torch.zeros(3)
            state = model.state_dict()
            want = expected.state_dict()
            self.assertTrue(all(torch.equal(state[key], want[key]) for key in want))

    def test_save_pretrained_writes_the_weights(self) -> None:
        import transformers

        for name, make in (
            ("gpt2", transformers.GPT2LMHeadModel),
            ("t5", transformers.T5ForConditionalGeneration),
        ):
            with training(name) as (model, optimizer), tempfile.TemporaryDirectory() as folder:
                expected = _trained(name, model, optimizer)
                for size in ("5GB", "20KB"):
                    model.save_pretrained(folder, max_shard_size=size)
                    self.assertTrue(equal_weights(expected, make.from_pretrained(folder)), name)

    def test_adapters_are_saved(self) -> None:
        with training("lora") as (model, optimizer), tempfile.TemporaryDirectory() as folder:
            expected = _trained("lora", model, optimizer)
            model.save_pretrained(folder)
            from safetensors.torch import load_file

            read = load_file(os.path.join(folder, "adapter_model.safetensors"))
            want = expected.state_dict()
            self.assertTrue(read)
            for name, tensor in read.items():
                key = name.replace("lora_A.weight", "lora_A.default.weight")
                key = key.replace("lora_B.weight", "lora_B.default.weight")
                self.assertTrue(torch.equal(tensor, want[key]), name)

    def test_adapters_that_are_merged_within_gathered_are_saved_within(self) -> None:
        import peft

        torch.manual_seed(0)
        options = peft.LoraConfig(r=2, target_modules=["c_attn"], init_lora_weights=False)
        expected = peft.get_peft_model(tiny_models.make("gpt2"), options).merge_and_unload()
        torch.manual_seed(0)
        model = peft.get_peft_model(tiny_models.make("gpt2"), options)
        with training(model=model) as (model, _):
            model(**tiny_models.batch("gpt2", 0))
            with self.assertWarnsRegex(UserWarning, "merging adapters"):
                with penstock.gathered(model):
                    merged = model.merge_and_unload()
                    saved = {name: value.clone() for name, value in merged.state_dict().items()}
            for name, value in expected.state_dict().items():
                self.assertTrue(torch.equal(saved[name], value), name)

    def test_gathered_shows_current_weights_and_leaves_none_behind(self) -> None:
        with training("gpt2") as (model, optimizer):
            expected = _trained("gpt2", model, optimizer)
            weight = model.transformer.h[0].mlp.c_fc.weight
            want = expected.transformer.h[0].mlp.c_fc.weight
            self.assertTrue(weight.isnan().all())
            with penstock.gathered(model.transformer.h[0]):
                with penstock.gathered([weight]):
                    self.assertTrue(torch.equal(weight, want))
                self.assertTrue(torch.equal(weight, want))
                view = weight[0]
                duplicate = copy.deepcopy(weight)
            self.assertTrue(weight.isnan().all())
            self.assertTrue(torch.equal(view, want[0]))
            self.assertTrue(torch.equal(duplicate, want))
            with penstock.gathered(torch.nn.Linear(2, 2)):
                pass

    def test_a_forward_within_gathered_is_trained_like_any(self) -> None:
        expected, other = plain("odd")
        with training("odd") as (model, optimizer):
            for number in range(2):
                torch.manual_seed(0)
                with penstock.gathered(model):
                    loss = model(**tiny_models.batch("odd", number))
                    loss = loss + model.blocks[1].up.weight.square().mean()
                    loss.backward()
                optimizer.step()
                torch.manual_seed(0)
                loss = expected(**tiny_models.batch("odd", number))
                (loss + expected.blocks[1].up.weight.square().mean()).backward()
                other.step()
                other.zero_grad()
            self.assertTrue(equal_weights(expected, model))

    def test_views_of_weights_that_were_released_read_as_nan(self) -> None:
        kept: list[torch.Tensor] = []
        with training("gpt2") as (model, optimizer):
            for layer in model.transformer.h:
                layer.register_forward_pre_hook(
                    lambda module, _: kept.append(module.mlp.c_fc.weight.detach()[0])
                )
            for number in range(2):
                step(model, optimizer, "gpt2", number)
            gc.collect()
        self.assertEqual(len(kept), 8)
        for view in kept:
            self.assertTrue(view.isnan().all())


class Refused(unittest.TestCase):
    def test_what_changes_copies_or_saves_parameters_past_the_engine(self) -> None:
        import transformers

        with training("gpt2") as (model, optimizer), tempfile.TemporaryDirectory() as folder:
            _trained("gpt2", model, optimizer)
            block = model.transformer.h[0]
            weight = block.mlp.c_fc.weight
            path = os.path.join(folder, "file")
            attempts = {
                ".to(bf16)": lambda: model.to(torch.bfloat16),
                ".half()": lambda: model.half(),
                ".double() of a block": lambda: block.double(),
                ".to_empty()": lambda: model.to_empty(device="cpu"),
                ".to(meta)": lambda: block.mlp.to("meta"),
                ".share_memory()": lambda: model.share_memory(),
                "deepcopy": lambda: copy.deepcopy(model),
                "deepcopy of a block": lambda: copy.deepcopy(block),
                "deepcopy of what is in a block": lambda: copy.deepcopy(block.mlp),
                "deepcopy of a parameter": lambda: copy.deepcopy(weight),
                "deepcopy of the optimizer": lambda: copy.deepcopy(optimizer),
                "pickle": lambda: pickle.dumps(model),
                "pickle of what is in a block": lambda: pickle.dumps(block.mlp),
                "torch.save": lambda: torch.save(model, path),
                "torch.save of a parameter": lambda: torch.save(weight, path),
                "torch.save of parameters": lambda: torch.save(
                    dict(model.named_parameters()), path
                ),
                "pickle of the optimizer": lambda: pickle.dumps(optimizer),
                "resize_token_embeddings": lambda: model.resize_token_embeddings(70),
                "load_state_dict": lambda: model.load_state_dict(model.state_dict()),
                "load_state_dict of a block": lambda: block.load_state_dict(block.state_dict()),
                "gathered to write": lambda: penstock.gathered(model, write=True).__enter__(),
                "add_param_group": lambda: optimizer.add_param_group({"params": [weight]}),
                "initialize again": lambda: penstock.initialize(model, {}, run=folder),
                "clip by nothing": lambda: penstock.clip_grad_norm_(model, 0),
                "clip of another module": lambda: penstock.clip_grad_norm_(torch.nn.ReLU(), 1),
                "state_dict of another": lambda: optimizer.load_state_dict({"state": {}}),
            }
            for name, attempt in attempts.items():
                with self.subTest(name), self.assertRaisesRegex(_Refused, "^penstock: [^\n]*$"):
                    attempt()
            del transformers
            expected = plain("gpt2")[0]
            del expected
            step(model, optimizer, "gpt2", 1)

    def test_moves_that_change_nothing_are_made(self) -> None:
        with training("gpt2") as (model, optimizer):
            _trained("gpt2", model, optimizer)
            self.assertIs(model.to("cpu"), model)
            self.assertIs(model.float(), model)
            self.assertIs(model.to(torch.float32), model)
            step(model, optimizer, "gpt2", 1)

    def test_other_parameters_than_before_are_seen_by_the_next_forward(self) -> None:
        def toggle(model: Any) -> None:
            model.embed.weight.requires_grad_(False)

        def replace(model: Any) -> None:
            model.bias.weight = torch.nn.Parameter(torch.zeros(32, 32))

        def add(model: Any) -> None:
            model.bias.more = torch.nn.Parameter(torch.zeros(3))

        for change in (toggle, replace, add):
            with training("odd") as (model, optimizer):
                step(model, optimizer, "odd", 0)
                change(model)
                with self.assertRaisesRegex(_Refused, "penstock.initialize"):
                    backward(model, "odd", 1)

    def test_writes_into_weights_are_not_lost_silently(self) -> None:
        with training("odd") as (model, optimizer):
            step(model, optimizer, "odd", 0)
            with self.assertRaises(RuntimeError), torch.no_grad():
                model.bias.weight.add_(1)
            with torch.no_grad():
                model.bias.weight.fill_(1)
            with self.assertRaisesRegex(_Refused, "bias.weight was written"):
                step(model, optimizer, "odd", 1)
            self.assertTrue(model.bias.weight.isnan().all())
            model.bias.weight.data = torch.zeros(32, 32)
            with self.assertRaisesRegex(_Refused, "bias.weight was written"):
                step(model, optimizer, "odd", 1)
            self.assertTrue(model.bias.weight.isnan().all())
            step(model, optimizer, "odd", 1)
        with training("odd", "device") as (model, optimizer):
            step(model, optimizer, "odd", 0)
            with torch.no_grad():
                model.bias.weight.fill_(1)
            with self.assertRaisesRegex(_Refused, "bias.weight was written"):
                step(model, optimizer, "odd", 1)

    def test_writes_past_the_version_counters_are_seen_at_the_next_step(self) -> None:
        def scale(parameter: torch.Tensor) -> None:
            parameter.data.mul_(2)

        def by_numpy(parameter: torch.Tensor) -> None:
            parameter.detach().numpy()[:] += 1

        for write in (scale, by_numpy):
            for home in ("nvme", "device"):
                with self.subTest(write=write.__name__, home=home), training("odd", home) as made:
                    model, optimizer = made
                    step(model, optimizer, "odd", 0)
                    backward(model, "odd", 1)
                    write(model.bias.weight)
                    with self.assertRaisesRegex(_Refused, "bias.weight was written"):
                        optimizer.step()

    def test_a_forward_does_not_use_what_was_written(self) -> None:
        expected, other = plain("odd")
        with training("odd") as (model, optimizer):
            step(expected, other, "odd", 0)
            step(model, optimizer, "odd", 0)
            batch = tiny_models.batch("odd", 1)
            with torch.no_grad():
                model(**batch)
                model.bias.weight.data = torch.ones(32, 32)  # it is there until the step
                with self.assertRaisesRegex(_Refused, "bias.weight was written"):
                    model(**batch)
                self.assertTrue(torch.equal(expected(**batch), model(**batch)))
            with (
                self.assertRaisesRegex(_Refused, "bias.weight was written"),
                penstock.gathered(model),
                torch.no_grad(),
            ):
                model.bias.weight.fill_(1)
                for _ in range(2):
                    with self.assertRaisesRegex(_Refused, "bias.weight was written"):
                        model(**batch)
            with torch.no_grad():
                self.assertTrue(torch.equal(expected(**batch), model(**batch)))

    def test_values_that_were_refused_are_not_used(self) -> None:
        expected, other = plain("odd")
        step(expected, other, "odd", 0)
        for home in ("nvme", "device"):
            for within in (False, True):
                with self.subTest(home, within=within), training("odd", home) as (model, optimizer):
                    step(model, optimizer, "odd", 0)
                    context = penstock.gathered(model) if within else contextlib.nullcontext()
                    with self.assertRaisesRegex(_Refused, "bias.weight was written"):
                        with context, torch.no_grad():
                            model.bias.weight.fill_(1)
                        step(model, optimizer, "odd", 1)
                    model.zero_grad()
                    self.assertTrue(equal_weights(expected, model))
                    with torch.no_grad():
                        want = expected(**tiny_models.batch("odd", 1))
                        got = model(**tiny_models.batch("odd", 1))
                    self.assertTrue(torch.equal(want, got))
                    with penstock.gathered(model):
                        self.assertTrue(torch.equal(expected.bias.weight, model.bias.weight))

    def test_weights_may_be_written_until_the_module_is_used(self) -> None:
        expected, other = plain("odd")
        with training("odd") as (model, optimizer):
            for each in (expected, model):
                with penstock.gathered(each, write=True), torch.no_grad():
                    each.bias.weight.fill_(0.25)
                each.load_state_dict({"scale": torch.full((32,), 2.0)}, strict=False)
            step(expected, other, "odd", 0)
            step(model, optimizer, "odd", 0)
            self.assertTrue(equal_weights(expected, model))

    def test_more_than_one_rank(self) -> None:
        with mock.patch.dict(os.environ, {"WORLD_SIZE": "2"}):
            with self.assertRaisesRegex(penstock.UnavailableError, "one of 2 ranks"):
                penstock.initialize(torch.nn.Linear(2, 2), {}, run="/nowhere")

    def test_what_initialize_cannot_take_leaves_the_module_as_it_was(self) -> None:
        sparse = torch.nn.Linear(2, 2)
        sparse.scale = torch.nn.Parameter(torch.eye(2).to_sparse())
        cases: list[tuple[str, Any, dict[str, Any]]] = [
            ("weight has no shape yet", torch.nn.LazyLinear(2), {}),
            ("scale has layout torch.sparse_coo", sparse, {}),
            ("has no values", torch.nn.Linear(2, 2, device="meta"), {}),
            ("float64", torch.nn.Linear(2, 2).double(), {}),
            ("nothing is trained", torch.nn.Linear(2, 2).requires_grad_(False), {}),
            ("scheduler", torch.nn.Linear(2, 2), {"scheduler": {"type": "WarmupLR"}}),
            ("Lamb", torch.nn.Linear(2, 2), {"optimizer": {"type": "Lamb"}}),
            ("missing_gradients", torch.nn.Linear(2, 2), {"penstock": {"missing_gradients": 1}}),
            ("unknown", torch.nn.Linear(2, 2), {"nonsense": 1}),
        ]
        for message, module, config in cases:
            with self.subTest(message), tempfile.TemporaryDirectory() as folder:
                run = os.path.join(folder, "run")
                with self.assertRaisesRegex(_Refused, message):
                    penstock.initialize(module, config, run=run)
                self.assertFalse(os.path.exists(run))
                self.assertFalse(hasattr(module, "penstock"))
                if module.weight.device.type != "meta":
                    module(torch.ones(1, 2, dtype=module.weight.dtype))

    def test_a_closed_training_says_so(self) -> None:
        with training("odd") as (model, optimizer):
            step(model, optimizer, "odd", 0)
        for attempt in (
            lambda: backward(model, "odd", 0),
            lambda: model.state_dict(),
            lambda: optimizer.commit(),
            lambda: penstock.gathered(model).__enter__(),
        ):
            with self.assertRaisesRegex(penstock.UnavailableError, "was closed"):
                attempt()


class Lives(unittest.TestCase):
    def test_two_models_train_beside_each_other(self) -> None:
        first, first_optimizer = plain("odd")
        second, second_optimizer = plain("gpt2")
        with training("odd") as (a, a_optimizer), training("gpt2", "host") as (b, b_optimizer):
            for number in range(2):
                step(first, first_optimizer, "odd", number)
                step(second, second_optimizer, "gpt2", number)
                step(a, a_optimizer, "odd", number)
                step(b, b_optimizer, "gpt2", number)
            self.assertTrue(equal_weights(first, a))
            self.assertTrue(equal_weights(second, b))

    def test_a_model_that_is_freed_lets_its_run_go(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            run = os.path.join(folder, "run")
            for _ in range(2):
                model, optimizer = penstock.initialize(
                    tiny_models.make("odd"), {"optimizer": {"type": "AdamW"}}, run=run
                )
                step(model, optimizer, "odd", 0)
                del model, optimizer
                gc.collect()
                self.assertFalse(os.path.exists(run))

    def test_a_cell_of_a_notebook_runs_again(self) -> None:
        with tempfile.TemporaryDirectory() as folder:

            def cell() -> Any:
                settings = matrix.config("nvme", folder, 1)
                run = os.path.join(folder, "run")
                model, optimizer = penstock.initialize(tiny_models.make("gpt2"), settings, run=run)
                step(model, optimizer, "gpt2", optimizer.steps)
                optimizer.commit()
                return model, optimizer

            gc.disable()
            self.addCleanup(gc.enable)
            made = cell()
            with self.assertRaisesRegex(penstock.UnavailableError, "open in this process"):
                cell()  # `made` has it
            del made
            model, optimizer = cell()
            self.assertEqual(optimizer.steps, 2)
            optimizer.close()

    def test_ddp_says_that_it_is_not_needed(self) -> None:
        with tempfile.TemporaryDirectory() as folder, training("gpt2") as (model, _):
            torch.distributed.init_process_group(
                "gloo", init_method=f"file://{folder}/store", rank=0, world_size=1
            )
            try:
                with self.assertRaisesRegex(RuntimeError, "not needed"):
                    torch.nn.parallel.DistributedDataParallel(model)
            finally:
                torch.distributed.destroy_process_group()

    def test_workers_of_a_loader_by_fork(self) -> None:
        data = [tiny_models.batch("odd", number) for number in range(4)]
        loader = torch.utils.data.DataLoader(data, batch_size=None, num_workers=2)
        with training("odd") as (model, optimizer):
            for batch in loader:
                model(**batch).backward()
                optimizer.step()
            self.assertEqual(optimizer.steps, 4)


class _Tied(torch.nn.Module):
    """Two modules of one parameter, which was made outside of both."""

    def __init__(self) -> None:
        super().__init__()
        shared = torch.nn.Parameter(torch.ones(8, 8))
        self.first, self.second = (torch.nn.Linear(8, 8, bias=False) for _ in range(2))
        self.first.weight = shared
        self.second.weight = shared

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.second(self.first(x))
        return out


class WithoutMemory(unittest.TestCase):
    def test_a_parameter_of_two_modules_stays_one(self) -> None:
        with penstock.init():
            made = _Tied()
        self.assertIs(made.first.weight, made.second.weight)
        with training(model=made, weights="random") as (model, optimizer):
            self.assertIs(model.first.weight, model.second.weight)
            model(torch.ones(2, 8)).sum().backward()
            optimizer.step()
            state = model.state_dict()
            self.assertTrue(torch.equal(state["first.weight"], state["second.weight"]))

    def test_a_line_names_defaults_that_change_the_training(self) -> None:
        decay = {"type": "AdamW", "params": {"lr": 1e-3, "weight_decay": 0.1}}
        cases: list[tuple[dict[str, Any], str]] = [
            ({"optimizer": decay}, "gradient_clipping is 1.0"),
            ({"gradient_clipping": 0.5}, "weight_decay is 0.0"),
            ({}, "gradient_clipping is 1.0 and weight_decay is 0.0"),
        ]
        for given, said in cases:
            with tempfile.TemporaryDirectory() as run, self.assertLogs("penstock") as log:
                _, optimizer = penstock.initialize(tiny_models.make("gpt2"), given, run=run)
                optimizer.close()
            self.assertIn(f"penstock: {said}: the configuration", "".join(log.output))
        with tempfile.TemporaryDirectory() as run, self.assertNoLogs("penstock", "WARNING"):
            given = {"optimizer": decay, "gradient_clipping": 0}
            _, optimizer = penstock.initialize(tiny_models.make("gpt2"), given, run=run)
            optimizer.close()

    def test_its_parameters_may_be_given_in_any_form(self) -> None:
        def groups(model: Any) -> Any:
            rest = (p for name, p in model.named_parameters() if name != "out.bias")
            return [{"params": model.out.bias, "lr": 1e-2}, {"params": rest}]

        for give in (groups, lambda m: list(m.parameters()), lambda m: m.parameters()):
            with penstock.init():
                made = torch.nn.Sequential()
                made.inner, made.out = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)
            given = give(made)
            with training(model=made, weights="random", model_parameters=given) as (
                model,
                optimizer,
            ):
                model(torch.ones(2, 8)).sum().backward()
                optimizer.step()
                self.assertEqual(optimizer.steps, 1)
                of_groups = {id(p) for group in optimizer.param_groups for p in group["params"]}
                self.assertEqual(of_groups, {id(p) for p in model.parameters()})


class Commits(unittest.TestCase):
    def test_a_run_resumes_from_its_commit(self) -> None:
        expected, other = plain("gpt2")
        with tempfile.TemporaryDirectory() as folder:
            run = os.path.join(folder, "run")
            with training("gpt2", run=run) as (model, optimizer):
                for number in range(2):
                    step(model, optimizer, "gpt2", number)
                self.assertEqual(optimizer.commit(), 2)
                step(model, optimizer, "gpt2", 90)  # is not committed
            for number in range(4):
                step(expected, other, "gpt2", number)
            with training("gpt2", run=run) as (model, optimizer):
                self.assertTrue(optimizer.continued)
                self.assertEqual(optimizer.steps, 2)
                for number in range(2, 4):
                    step(model, optimizer, "gpt2", number)
                self.assertTrue(equal_weights(expected, model))

    def test_a_training_whose_state_was_moved_commits(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            run = os.path.join(folder, "run")
            for number, home in enumerate(("nvme", "host", "nvme")):
                with training("odd", home, run=run) as (model, optimizer):
                    self.assertEqual(optimizer.steps, number)
                    step(model, optimizer, "odd", number)
                    optimizer.commit()

    def test_closing_makes_the_commit_that_is_due(self) -> None:
        ours = {"penstock": {"commit_every_steps": 1, "tile_elements": 4096}}
        with tempfile.TemporaryDirectory() as folder:
            run = os.path.join(folder, "run")
            with training("gpt2", run=run, more=ours) as (model, optimizer):
                scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
                optimizer.attach(scheduler=scheduler)
                step(model, optimizer, "gpt2", 0)  # the scheduler does not step any more
            with training("gpt2", run=run, more=ours) as (_, optimizer):
                self.assertEqual(optimizer.steps, 1)

    def test_a_commit_has_groups_schedulers_and_random_states(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            run = os.path.join(folder, "run")

            def begin(optimizer: Any) -> Any:
                scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
                optimizer.attach(scheduler=scheduler)
                return scheduler

            with training("gpt2", run=run) as (model, optimizer):
                scheduler = begin(optimizer)
                step(model, optimizer, "gpt2", 0)
                scheduler.step()
                saved = optimizer.state_dict()
                expected = copy.deepcopy(model.state_dict())
                drawn = torch.rand(3)
            with training("gpt2", run=run) as (model, optimizer):
                scheduler = begin(optimizer)
                self.assertTrue(torch.equal(drawn, torch.rand(3)))
                self.assertEqual(optimizer.param_groups[0]["lr"], 5e-4)
                self.assertEqual(scheduler.last_epoch, 1)
                optimizer.load_state_dict(saved)
                step(model, optimizer, "gpt2", 1)
                optimizer.load_state_dict(saved)  # gives up what was not committed
                self.assertEqual(optimizer.steps, 1)
                for name, weight in model.state_dict().items():
                    self.assertTrue(torch.equal(weight, expected[name]), name)
                step(model, optimizer, "gpt2", 1)
                optimizer.commit()
                with self.assertRaisesRegex(_Refused, "is of step 2, and step 1 was saved"):
                    optimizer.load_state_dict(saved)
                step(model, optimizer, "gpt2", 2)  # a refusal changes nothing

    def test_the_same_step_of_another_branch_is_loaded(self) -> None:
        with tempfile.TemporaryDirectory() as folder:

            def save(optimizer: Any, name: str) -> Any:
                state = optimizer.state_dict()
                state["penstock"]["snapshot"] = optimizer.snapshot(os.path.join(folder, name))
                return state

            with training("odd", run=os.path.join(folder, "run")) as (model, optimizer):
                step(model, optimizer, "odd", 0)
                first = save(optimizer, "first")
                step(model, optimizer, "odd", 1)
                second = save(optimizer, "second")
                expected = copy.deepcopy(model.state_dict())
                optimizer.load_state_dict(first)
                step(model, optimizer, "odd", 90)
                optimizer.load_state_dict(second)
                for name, weight in model.state_dict().items():
                    self.assertTrue(torch.equal(weight, expected[name]), name)

    def test_a_snapshot_is_loaded_though_its_run_is_gone(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            gone = os.path.join(folder, "gone")
            with training("odd", run=gone) as (model, optimizer):
                step(model, optimizer, "odd", 0)
                saved = optimizer.state_dict()
                saved["penstock"]["snapshot"] = optimizer.snapshot(os.path.join(folder, "kept"))
                expected = copy.deepcopy(model.state_dict())
            shutil.rmtree(gone)
            with training("odd", run=os.path.join(folder, "run")) as (model, optimizer):
                step(model, optimizer, "odd", 1)
                optimizer.load_state_dict(saved)
                self.assertFalse(os.path.exists(gone))
                for name, weight in model.state_dict().items():
                    self.assertTrue(torch.equal(weight, expected[name]), name)
                step(model, optimizer, "odd", 2)
                optimizer.commit()

    def test_a_snapshot_of_another_run_leaves_that_run(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            first, second = (os.path.join(folder, name) for name in ("first", "second"))
            with training("odd", run=first) as (model, optimizer):
                step(model, optimizer, "odd", 0)
                saved = optimizer.state_dict()
                saved["penstock"]["snapshot"] = optimizer.snapshot(os.path.join(folder, "kept"))
                step(model, optimizer, "odd", 1)
                optimizer.commit()
            with training("odd", run=second) as (model, optimizer):
                optimizer.load_state_dict(saved)
                step(model, optimizer, "odd", 90)
                step(model, optimizer, "odd", 91)
                optimizer.commit()
            for run, steps in ((first, 2), (second, 3)):
                with training("odd", run=run) as (model, optimizer):
                    self.assertEqual(optimizer.steps, steps)

    def test_a_closed_training_resumes_from_a_state_dict(self) -> None:
        expected, other = plain("odd")
        with training("odd") as (model, optimizer):
            step(expected, other, "odd", 0)
            step(model, optimizer, "odd", 0)
            saved = optimizer.state_dict()
            optimizer.close()
            optimizer.load_state_dict(saved)
            step(expected, other, "odd", 1)
            step(model, optimizer, "odd", 1)
            self.assertTrue(equal_weights(expected, model))

    def test_a_run_that_was_moved_finds_what_it_has_committed(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            before, now = (os.path.join(folder, name) for name in ("before", "now"))
            with training("odd", "host", run=before) as (model, optimizer):
                step(model, optimizer, "odd", 0)
                saved = optimizer.state_dict()
                expected = copy.deepcopy(model.state_dict())
            os.rename(before, now)
            with training("odd", "host", run=now) as (model, optimizer):
                step(model, optimizer, "odd", 1)
                optimizer.load_state_dict(saved)
                self.assertEqual(optimizer.steps, 1)
                for name, weight in model.state_dict().items():
                    self.assertTrue(torch.equal(weight, expected[name]), name)

    def test_what_is_attached_after_a_step_leaves_the_generators(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            run = os.path.join(folder, "run")
            for continued in (False, True):
                with training("odd", run=run) as (model, optimizer):
                    step(model, optimizer, "odd", 0)
                    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer)
                    torch.manual_seed(7 + continued)
                    before = torch.get_rng_state()
                    optimizer.attach(scheduler=scheduler)
                    self.assertTrue(torch.equal(before, torch.get_rng_state()))
                    self.assertEqual(optimizer.continued, continued)
                    optimizer.commit()

    def test_a_monitor_that_raises_loses_no_commit(self) -> None:
        class Full:
            def on_step(self, row: Any) -> None:
                raise OSError("no space")

        ours = {"penstock": {"commit_every_steps": 1, "tile_elements": 4096}}
        with tempfile.TemporaryDirectory() as folder:
            run = os.path.join(folder, "run")
            with training("odd", run=run, more=ours) as (model, optimizer):
                optimizer.rows.monitors.append(Full())
                with self.assertRaisesRegex(OSError, "no space"):
                    step(model, optimizer, "odd", 0)
            with training("odd", run=run, more=ours) as (model, optimizer):
                self.assertEqual(optimizer.steps, 1)

    def test_a_commit_between_backward_and_step_is_refused(self) -> None:
        with training("odd") as (model, optimizer):
            backward(model, "odd", 0)
            with self.assertRaisesRegex(_Refused, "between backward and step"):
                optimizer.commit()
            optimizer.step()
            optimizer.commit()

    def test_a_commit_of_another_module_is_refused_and_changes_nothing(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            run = os.path.join(folder, "run")
            with training("odd", run=run) as (model, optimizer):
                step(model, optimizer, "odd", 0)
                optimizer.commit()
            other = tiny_models.make("llama")
            with self.assertRaises(penstock.PenstockError), training(run=run, model=other):
                pass
            backward(other, "llama", 0)
            with training("odd", run=run) as (model, optimizer):
                self.assertEqual(optimizer.steps, 1)


if __name__ == "__main__":
    unittest.main()
