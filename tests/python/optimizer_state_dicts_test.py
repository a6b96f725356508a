"""State dicts are small and find their commit; full ones are taken by torch; processes leave nothing."""

from __future__ import annotations

import os
import subprocess
import sys
import unittest
from typing import Any

import optimizer_support  # noqa: F401  (finds the package)
import penstock
import torch
from optimizer_support import RULES, OptimizerTest, decay_groups, tower, train
from penstock import reference
from penstock.errors import InvalidArgumentError
from warning_support import warned


class StateDictsFindTheirCommit(OptimizerTest):
    def two_steps(self) -> tuple[Any, Any, Any, Any]:
        """Trains; returns a module and its optimizer, and the same in plain memory."""
        model, other = tower(), tower()
        optimizer = self.make(model.parameters(), model=model)
        plain = reference.AdamW(other.parameters(), model=other)
        train(model, optimizer, 2)
        train(other, plain, 2)
        return model, optimizer, other, plain

    def test_a_saved_state_dict_is_small_and_resumes_elsewhere(self) -> None:
        path = os.path.join(self.folder, "optimizer.pt")
        model, other = tower(), tower()
        optimizer = self.make(decay_groups(model), model=model)
        plain = reference.AdamW(decay_groups(other), model=other)
        self.assertEqual(train(model, optimizer, 3), train(other, plain, 3))
        optimizer.param_groups[0]["lr"] = 0.5
        torch.save(optimizer.state_dict(), path)
        self.assertLess(os.path.getsize(path), 8192)
        optimizer.close()
        del plain.param_groups[0]["lr"]
        plain.param_groups[0]["lr"] = 0.5
        again = tower()
        torch.nn.init.zeros_(again.norm.weight)  # the commit has the weights
        loaded = self.make(decay_groups(again), model=again)
        loaded.load_state_dict(torch.load(path, weights_only=True))
        self.assertEqual(loaded.param_groups[0]["lr"], 0.5)
        self.assertEqual(train(again, loaded, 3, seed=2), train(other, plain, 3, seed=2))

    def test_a_state_dict_before_the_first_step_and_its_return(self) -> None:
        optimizer = self.make(tower().parameters(), lr=0.25)
        saved = optimizer.state_dict()
        self.assertIsNone(saved["penstock"])
        optimizer.param_groups[0]["lr"] = 0.5
        optimizer.load_state_dict(saved)
        self.assertEqual(optimizer.param_groups[0]["lr"], 0.25)

    def test_going_back_to_the_last_commit_in_the_same_process(self) -> None:
        model = tower()
        optimizer = self.make(model.parameters(), model=model)
        train(model, optimizer, 2)
        saved = optimizer.state_dict()
        losses = train(model, optimizer, 3, seed=5)
        optimizer.load_state_dict(saved)
        self.assertEqual(train(model, optimizer, 3, seed=5), losses)

    def test_weights_that_were_changed_since_the_commit_are_those_of_it_again(self) -> None:
        model, optimizer, other, plain = self.two_steps()
        saved = optimizer.state_dict()
        optimizer.synchronize()
        with torch.no_grad():
            model.norm.bias.add_(1)
        model.norm.weight.data = torch.zeros_like(model.norm.weight)
        with warned(self, "norm.weight were changed from outside"):
            optimizer.commit()  # goes on, with the weights of the last step
        optimizer.load_state_dict(saved)
        self.assert_same_weights(model, other)
        self.assertEqual(train(model, optimizer, 3, seed=5), train(other, plain, 3, seed=5))

    def test_steps_that_a_scaler_has_skipped_since_the_commit_are_given_up(self) -> None:
        model = tower()
        optimizer = self.make(model.parameters())
        train(model, optimizer, 2)
        saved = optimizer.state_dict()
        optimizer._made().skip_step(1.0, None)
        self.assertEqual(optimizer.steps, 3)
        optimizer.load_state_dict(saved)
        self.assertEqual(optimizer.steps, 2)
        optimizer._made().skip_step(1.0, None)
        optimizer.commit()
        with self.assertRaisesRegex(InvalidArgumentError, "is of step 3, and step 2 was saved"):
            optimizer.load_state_dict(saved)

    def test_a_state_dict_of_another_training_ends_nothing(self) -> None:
        model, other = tower(), tower(blocks=2)
        optimizer, second = (self.make(m.parameters(), model=m) for m in (model, other))
        for each, its in ((model, optimizer), (other, second)):
            train(each, its, 1)
        saved = second.state_dict()
        saved["penstock"]["snapshot"] = second.snapshot(os.path.join(self.folder, "kept"))
        with self.assertRaisesRegex(InvalidArgumentError, "have .* parameters"):
            optimizer.load_state_dict(saved)
        saved["param_groups"] = optimizer.state_dict()["param_groups"]
        with self.assertRaisesRegex(InvalidArgumentError, "of another training"):
            optimizer.load_state_dict(saved)
        train(model, optimizer, 1)
        self.assertEqual(optimizer.steps, 2)

    def test_a_state_dict_of_parameters_that_were_frozen_since_is_loaded(self) -> None:
        model = tower()
        frozen = tower()
        frozen.embedding.weight.requires_grad_(False)
        first = self.make(frozen.parameters())
        train(frozen, first, 2)
        saved = first.state_dict()
        saved["penstock"]["snapshot"] = first.snapshot(os.path.join(self.folder, "kept"))
        first.close()
        optimizer = self.make(model.parameters())
        train(model, optimizer, 1)
        model.embedding.weight.requires_grad_(False)
        model.zero_grad()
        optimizer.load_state_dict(saved)
        self.assertEqual(optimizer.steps, 2)
        self.assertTrue(torch.equal(model.norm.bias, frozen.norm.bias))

    def test_parameters_that_are_others_now_end_nothing(self) -> None:
        model, optimizer, other, plain = self.two_steps()
        saved = optimizer.state_dict()
        model.double()
        with self.assertRaises(InvalidArgumentError):
            optimizer.load_state_dict(saved)
        model.float()
        optimizer.load_state_dict(saved)
        self.assertEqual(train(model, optimizer, 2, seed=3), train(other, plain, 2, seed=3))

    def test_schedulers_resume_after_load_state_dict(self) -> None:
        model, other = tower(), tower()
        optimizer = self.make(model.parameters())
        plain = reference.AdamW(other.parameters())
        one = torch.optim.lr_scheduler.StepLR(optimizer, 2)
        two = torch.optim.lr_scheduler.StepLR(plain, 2)
        train(model, optimizer, 3, one)
        train(other, plain, 3, two)
        optimizer.load_state_dict(optimizer.state_dict())
        self.assertEqual(train(model, optimizer, 3, one), train(other, plain, 3, two))

    def test_an_older_commit_is_refused(self) -> None:
        model = tower()
        optimizer = self.make(model.parameters())
        train(model, optimizer, 2)
        old = optimizer.state_dict()
        train(model, optimizer, 2)
        new = optimizer.state_dict()
        optimizer.close()
        loaded = self.make(tower().parameters())
        with self.assertRaisesRegex(
            InvalidArgumentError, "newest commit is of step 4; .* step 2 was asked"
        ):
            loaded.load_state_dict(old)
        loaded.load_state_dict(new)
        self.assertEqual(loaded.steps, 4)

    def test_state_dicts_of_others_are_refused(self) -> None:
        model = tower()
        theirs = torch.optim.AdamW(model.parameters())
        train(model, theirs, 1)
        with self.assertRaisesRegex(InvalidArgumentError, "states of torch.optim"):
            self.make(model.parameters()).load_state_dict(theirs.state_dict())
        optimizer = self.make(model.parameters())
        early = optimizer.state_dict()
        train(model, optimizer, 1)
        saved = optimizer.state_dict()
        with self.assertRaisesRegex(InvalidArgumentError, "before the first step"):
            optimizer.load_state_dict(early)
        optimizer.close()
        with self.assertRaisesRegex(InvalidArgumentError, "another training"):
            self.make(model.parameters(), "Adam").load_state_dict(saved)
        saved["penstock"]["run"] = os.path.join(self.folder, "nowhere")
        with self.assertRaisesRegex(InvalidArgumentError, "which is not there"):
            self.make(model.parameters()).load_state_dict(saved)

    def test_a_state_dict_that_was_cut_is_refused_in_a_line(self) -> None:
        _, optimizer, _, _ = self.two_steps()
        saved = optimizer.state_dict()
        for key in ("run", "uuid", "step"):
            for said in (
                {name: value for name, value in saved["penstock"].items() if name != key},
                {**saved["penstock"], key: None},
            ):
                with self.assertRaises(InvalidArgumentError) as caught:
                    optimizer.load_state_dict({**saved, "penstock": said})
                self.assert_line(caught.exception, 'state_dict["penstock"]', key)
        for cut in ([], {"penstock": saved["penstock"]}, {**saved, "param_groups": [3]}):
            with self.assertRaises(InvalidArgumentError) as caught:
                optimizer.load_state_dict(cut)
            self.assert_line(caught.exception, "state_dict")
        self.assertEqual(optimizer.steps, 2)

    def test_full_state_dicts_are_taken_by_torch(self) -> None:
        for rule in RULES:
            with self.subTest(rule=rule):
                model, other = tower(), tower()
                optimizer = self.make(decay_groups(model), rule)
                plain = getattr(reference, rule)(decay_groups(other))
                train(model, optimizer, 3)
                train(other, plain, 3)
                full = optimizer.full_state_dict()
                for number, parameter in enumerate(
                    p for group in plain.param_groups for p in group["params"]
                ):
                    for name, state in plain.state[parameter].items():
                        self.assertTrue(torch.equal(full["state"][number][name], state))
                    self.assertEqual(full["state"][number]["step"], 3)
                if not hasattr(torch.optim, rule):
                    continue
                leaving = getattr(torch.optim, rule)(decay_groups(model))
                leaving.load_state_dict(full)
                for mine, its in zip(
                    train(model, optimizer, 3, seed=2),
                    train(other, leaving_to(leaving, other), 3, seed=2),
                ):
                    self.assertAlmostEqual(mine, its, delta=1e-5 * its)

    def test_states_have_the_fp32_masters(self) -> None:
        model, other = tower(torch.bfloat16), tower(torch.bfloat16)
        optimizer = self.make(model.parameters())
        plain = reference.AdamW(other.parameters())
        train(model, optimizer, 2)
        train(other, plain, 2)
        for (_, mine, states), its in zip(optimizer.states(), other.parameters()):
            lo = plain.state[its]["lo"].to(torch.int32)
            hi = its.detach().view(torch.int16).to(torch.int32) << 16
            self.assertTrue(torch.equal(states["master"].view(torch.int32), hi + lo))
            self.assertTrue(torch.equal(states["master"].to(torch.bfloat16), mine))


def leaving_to(leaving: torch.optim.Optimizer, model: torch.nn.Module) -> torch.optim.Optimizer:
    """The same optimizer of torch for another module of the same shape."""
    other = type(leaving)(decay_groups(model))
    other.load_state_dict(leaving.state_dict())
    return other


class ProcessesEnd(OptimizerTest):
    PROGRAM = """
import sys
sys.path[:0] = [{tests!r}]
from optimizer_state_dicts_test import begin
optimizer = begin({folder!r})
"""

    def test_files_that_no_commit_names_go_with_the_process_or_with_the_next_run(self) -> None:
        killed = os.fork()
        if killed == 0:
            optimizer = begin(self.folder)
            os._exit(optimizer.steps - 1)
        self.assertEqual(os.waitpid(killed, 0)[1], 0)
        self.assertNotEqual(os.listdir(self.folder), [])
        tests = os.path.dirname(os.path.abspath(__file__))
        program = self.PROGRAM.format(tests=tests, folder=self.folder)
        subprocess.run([sys.executable, "-c", program], check=True, timeout=150)
        self.assertEqual(os.listdir(self.folder), [])


def begin(folder: str) -> penstock.AdamW:
    """Begins a training in this process, and commits nothing."""
    model = tower()
    optimizer = penstock.AdamW(model.parameters(), nvme_path=folder, host_memory="64MiB")
    train(model, optimizer, 1)
    return optimizer


if __name__ == "__main__":
    unittest.main()
