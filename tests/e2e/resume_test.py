"""Resume changes nothing: a run that was killed and resumed is bitwise the run that was not.

PENSTOCK_KILLS: how many processes are killed (30). PENSTOCK_KILL_SEED: of the moments and placements.
"""
import json
import os
import random
import re
import shutil
import signal
import subprocess
import time

import harness
from harness import make_config, merge, read_rows, read_summary, state_paths

KILLS = int(os.environ.get("PENSTOCK_KILLS", "30"))
SEED = int(os.environ.get("PENSTOCK_KILL_SEED", "1"))
STEPS = 24

DRIVES = ["nvme", "second"]
PLACEMENTS = {
    "device": {"param": "none", "optimizer": "none"},
    "host": {"param": "cpu", "optimizer": "cpu"},
    "optimizer on nvme": {"param": "cpu", "optimizer": "nvme"},
    "all on nvme": {"param": "nvme", "optimizer": "nvme"},
    "tier split": {"param": "nvme", "optimizer": "nvme", "penstock": {"tier_split": True}},
    "threads": {"param": "nvme", "optimizer": "nvme", "penstock": {"aio": {"engine": "threads"}}},
    "depth 1": {"param": "nvme", "optimizer": "nvme", "aio": {"queue_depth": 1, "block_size": 4096}},
    "overlap off": {"param": "nvme", "optimizer": "nvme", "penstock": {"overlap": False}},
    "two drives": {"param": "nvme", "optimizer": "nvme", "drives": DRIVES},
}


class ResumeTest(harness.PenstockTest):
    def config(self, placement, **override):
        options = {"drives": DRIVES[:1], **PLACEMENTS[placement]}
        nvme_path = [self.make_folder(drive) for drive in options.pop("drives")]
        config = make_config(nvme_path=nvme_path, **options)
        return merge(config, merge({"penstock": {"commit_every_steps": 3}}, override))

    def assert_same(self, run, whole):
        rows, tensors = self.numbers(run)
        expected_rows, expected = self.numbers(whole)
        for row, expected_row in zip(rows, expected_rows, strict=True):
            self.assertEqual(row, expected_row)
        self.assertEqual(tensors.keys(), expected.keys())
        for name, content in tensors.items():
            self.assertTrue(content == expected[name], f"{name} differs")

    def resume(self, run, config, *more, steps=STEPS, **keywords):
        return self.train(config, "--resume", *more, steps=steps, out=run, **keywords)[0]

    def resumed(self, run, config, *more, **keywords):
        outcome = self.resume(run, config, *more, **keywords)
        self.assertEqual(outcome.code, 0, str(outcome))
        return outcome


class KillTest(ResumeTest):
    def clean(self, run):
        outcome = harness.penstock("clean", run, "--yes")
        self.assertEqual(outcome.code, 0, str(outcome))
        self.assertFalse(os.path.exists(run))

    def leg(self, run, config, delay):
        """Trains until it ends or is killed after `delay` seconds; whether it ended. One that is given all
        the time there is must end."""
        self.runs += 1
        arguments = [harness.PROGRAM, "train", "--model", self.model, "--data", self.data,
                     "--config", self.write(f"config{self.runs}.json", config),
                     "--steps", str(STEPS), "--out", run]
        if os.path.exists(run):
            arguments.append("--resume")
        with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              text=True) as program:
            try:
                _, stderr = program.communicate(timeout=delay)
            except subprocess.TimeoutExpired:
                program.kill()
                _, stderr = program.communicate()
        self.resumed_legs += "resuming after" in stderr
        if program.returncode == -signal.SIGKILL:
            self.assertLess(delay, harness.TIMEOUT_S, "it hangs")
            self.kills += 1
            return False
        if program.returncode == 2 and "no commit" in stderr:
            # Killed before its first commit: there is nothing to resume. Without run.json there is
            # nothing but the folder.
            if os.path.exists(os.path.join(run, "run.json")):
                self.clean(run)
            else:
                shutil.rmtree(run)
            self.longest *= 1.5  # more kills after a commit
            return False
        self.assertEqual(program.returncode, 0, stderr)
        self.longest *= 0.9  # more kills before the end
        return True

    def test_sigkill_at_any_moment_costs_no_bit(self):
        self.model, self.data = self.make_model(), self.make_data()
        started = time.monotonic()
        whole = self.trained(self.config("host"), steps=STEPS, model=self.model, data=self.data)
        self.longest = 1.5 * (time.monotonic() - started)
        choose = random.Random(SEED)
        self.kills = trial = self.resumed_legs = 0
        while self.kills < KILLS:
            trial += 1
            run, ended = self.path(f"killed{trial}"), False
            while not ended:
                placement = choose.choice(list(PLACEMENTS))
                config = self.config(placement, bf16={"enabled": False})
                delay = harness.TIMEOUT_S
                if self.kills < KILLS:
                    delay = choose.uniform(0.01, self.longest)
                # Not a subTest: a leg that fails would be repeated for ever.
                ended = self.leg(run, config, delay)
            self.assert_same(run, whole)
            # Every file that any of the killed processes made is known to the run.
            self.clean(run)
            for drive in DRIVES:
                self.assertEqual(os.listdir(self.make_folder(drive)), [])
        # Not all of them may have died before their first commit or while they started.
        self.assertGreater(self.resumed_legs, 0)

    def test_interrupt_and_resume_in_bf16_with_micro_batches(self):
        config = self.config("all on nvme", bf16={"enabled": True}, gradient_accumulation_steps=2)
        whole = self.trained(config, steps=STEPS)
        run = self.trained(config, steps=7)
        self.resumed(run, config)
        self.assert_same(run, whole)


class PlacementChangeTest(ResumeTest):
    def test_every_home_and_tile_size_resumes_with_the_same_bits(self):
        whole = self.trained(self.config("device"), steps=STEPS)
        run = self.trained(self.config("all on nvme"), steps=3)
        legs = [self.config("host"), self.config("device"), self.config("optimizer on nvme"),
                self.config("all on nvme", penstock={"tile_elements": 8192}),
                self.config("two drives"),
                self.config("all on nvme", penstock={"durable": False}),
                self.config("all on nvme")]
        for number, config in enumerate(legs, start=2):
            self.resumed(run, config, steps=3 * number)
        self.assertEqual(3 * (len(legs) + 1), STEPS)
        self.assert_same(run, whole)

    def test_every_optimizer_resumes_with_the_same_bits(self):
        optimizers = {
            "exp_avg fp32": {"optimizer": {"type": "Lion"}},
            "exp_avg_sq fp32": {"optimizer": {"type": "Adagrad",
                                              "params": {"initial_accumulator_value": 0.1}}},
            "lo int16, exp_avg bf16, exp_avg_sq bf16": {
                "bf16": {"enabled": True, "bf16_optimizer_states": True}},
            "lo int16, exp_avg fp32, exp_avg_sq fp32": {  # what Adam keeps
                "bf16": {"enabled": True}, "optimizer": {"type": "Lamb"}},
        }
        for kept, keys in optimizers.items():
            with self.subTest(kept=kept):
                def config(placement, more={}):
                    return merge(self.config(placement, penstock=more), keys)

                seed = ("--seed", "7")
                whole = self.trained(config("device"), *seed, steps=15)
                run = self.trained(config("all on nvme"), *seed, steps=3)
                self.assertEqual(harness.penstock("snapshot", run, "kept").code, 0)
                legs = [config("host"), config("optimizer on nvme"), config("device"),
                        config("all on nvme", {"tile_elements": 8192})]
                for number, leg in enumerate(legs, start=2):
                    self.resumed(run, leg, steps=3 * number)
                self.assert_same(run, whole)
                self.assert_equal_bits(run, whole)
                states = re.search(r"(?m)^optimizer states +(.+), ",
                                   harness.penstock("inspect", run).stdout)
                self.assertEqual(states[1], kept)
                outcome, _ = self.train(config("all on nvme"), "--resume-from", "kept", steps=15,
                                        out=run)
                self.assertEqual(outcome.code, 0, str(outcome))
                self.assert_equal_bits(run, whole)

    def test_a_run_does_not_resume_with_another_optimizer(self):
        run = self.trained(self.config("all on nvme"), steps=3)
        for other in ("Lion", "Lamb"):  # Lamb's records are AdamW's
            outcome = self.resume(run, merge(self.config("all on nvme"),
                                             {"optimizer": {"type": other}}))
            self.assertEqual(outcome.code, 2, str(outcome))
            self.assertIn(f'optimizer.type is "{other}", was "AdamW"', outcome.stderr)

    def test_no_state_file_is_left_behind_by_a_move(self):
        run = self.trained(self.config("all on nvme"), steps=3)
        self.resumed(run, self.config("all on nvme", penstock={"tile_elements": 8192}), steps=6)
        self.assertEqual(len(harness.states_in(self.path("nvme"))), 1)


class NoCommitTest(ResumeTest):
    """What is only damaged is never taken for a run that has no commit, which is to be cleaned."""

    def setUp(self):
        super().setUp()
        self.conf = self.config("two drives")
        self.run_folder = self.trained(self.conf, steps=2)
        self.first, self.second = state_paths(self.run_folder)

    def lose_rows(self):
        os.unlink(os.path.join(self.run_folder, "metrics.jsonl"))

    def overwrite(self, path, offset, content):
        with open(path, "r+b") as file:
            file.seek(offset)
            file.write(content)

    def test_a_damaged_state_without_rows_is_damaged(self):
        self.lose_rows()
        damages = {"cut": lambda path: os.truncate(path, 100), "gone": os.unlink}
        for name, damage in damages.items():
            for path in (self.first, self.second):
                with self.subTest(name, path=path):
                    os.rename(path, path + ".kept")
                    shutil.copyfile(path + ".kept", path)
                    damage(path)
                    outcome = self.resume(self.run_folder, self.conf)
                    self.assert_fails(outcome, 3, path)
                    self.assertNotIn("no commit in", outcome.stderr)
                    self.assertNotIn("clean", outcome.stderr)
                    os.replace(path + ".kept", path)
        self.resumed(self.run_folder, self.conf, steps=4)

    def test_a_state_that_lost_its_first_head_and_its_commits_is_damaged(self):
        self.lose_rows()
        self.overwrite(self.first, 0, bytes(1 << 20))
        outcome = self.resume(self.run_folder, self.conf)
        self.assert_fails(outcome, 3, self.first, "neither place holds a commit")
        self.assertNotIn("no commit in", outcome.stderr)
        self.assertNotIn("clean", outcome.stderr)

    def test_a_state_that_lost_only_its_first_head_resumes(self):
        for step, content in enumerate((bytes(4096), b"x"), start=3):
            for path in (self.first, self.second):
                self.overwrite(path, 0, content)
            self.resumed(self.run_folder, self.conf, steps=step)
        self.overwrite(self.first, 4096, b"x")  # the layout
        self.resumed(self.run_folder, self.conf, steps=5)

    def test_an_emptied_state_of_a_run_that_has_rows_is_said_to_be_empty(self):
        os.truncate(self.first, 0)
        outcome = self.resume(self.run_folder, self.conf)
        self.assert_fails(outcome, 3, f"state file {self.first} is empty",
                          "restore it from a copy")
        self.assertNotIn("damaged", outcome.stderr)
        self.assertNotIn("clean", outcome.stderr)

    def test_a_run_with_neither_rows_nor_a_state_has_no_commit_unless_its_drive_is_away(self):
        self.lose_rows()
        for path in (self.first, self.second):
            os.rename(path, path + ".away")
        outcome = self.resume(self.run_folder, self.conf)
        self.assert_fails(outcome, 2, "no commit", self.first, "mount", "penstock clean")


class FullDriveTest(ResumeTest):
    def test_rows_that_find_no_space_end_the_run_and_it_resumes_when_there_is(self):
        config = self.config("all on nvme", penstock={"commit_every_steps": 0})
        whole = self.trained(config, steps=60)
        drive = self.make_folder("drive")
        with harness.mounted(drive, ["-t", "tmpfs", "-o", "size=20K", "none"]):
            run = os.path.join(drive, "run")
            outcome, _ = self.train(config, steps=60, out=run)
            self.assert_fails(outcome, 3, "metrics.jsonl", "No space left", "is committed")
            # The last step that was done is committed, and its row is the one that found no room.
            done = len(read_rows(run)) + 1
            self.assertIn(f"; step {done} is committed", outcome.errors[0])
            inspected = harness.penstock("inspect", run)
            self.assertEqual(inspected.code, 0, str(inspected))
            self.assertRegex(inspected.stdout, rf"committed step +{done}\n")
            subprocess.run(["mount", "-o", "remount,size=4M", drive], check=True)
            self.resumed(run, config, steps=60)
            self.assert_same(run, whole)


class WhatResumeLooksAtTest(ResumeTest):
    def setUp(self):
        super().setUp()
        self.conf = self.config("all on nvme")
        self.run_folder = self.trained(self.conf, steps=6)
        self.before = self.numbers(self.run_folder)

    def assert_untouched(self):
        rows, tensors = self.numbers(self.run_folder)
        self.assertEqual(rows, self.before[0])
        self.assertEqual(tensors, self.before[1])

    def test_what_differs_is_named_and_nothing_changes(self):
        cases = [
            ("learning rate", {"config": merge(self.conf, {"optimizer": {"params": {"lr": 2e-3}}})},
             "optimizer"),
            ("betas", {"config": merge(self.conf, {"optimizer": {"params": {"betas": [0.8, 0.99]}}})},
             "betas"),
            ("clipping", {"config": merge(self.conf, {"gradient_clipping": 0.5})}, "clipping"),
            ("scheduler", {"config": merge(self.conf, {"scheduler": {
                "type": "WarmupLR", "params": {"warmup_num_steps": 100}}})}, "scheduler"),
            ("threads", {"config": merge(self.conf, {"penstock": {"compute_threads": 2}})},
             "compute_threads"),
            ("batch", {"config": merge(self.conf, {"train_micro_batch_size_per_gpu": 1})}, "batch"),
            ("dtype", {"config": merge(self.conf, {"bf16": {"enabled": True}})}, "bf16"),
            ("data", {"data": self.write("other.txt", harness.text_bytes(40000, seed=2))}, "data"),
            ("model", {"model": self.make_model("other", n_layer=2)}, "n_layer"),
            ("seed", {"more": ("--seed", "7")}, "seed"),
            ("order", {"more": ("--data-order", "sequential")}, "order"),
            ("sequence", {"more": ("--sequence-length", "32")}, "sequence"),
        ]
        for name, change, word in cases:
            with self.subTest(name):
                keywords = {key: value for key, value in change.items()
                            if key in ("data", "model")}
                outcome = self.resume(self.run_folder, change.get("config", self.conf),
                                      *change.get("more", ()), **keywords)
                self.assert_fails(outcome, 2, word)
                self.assert_untouched()

    def test_a_step_that_is_reached_already_is_success(self):
        outcome = self.resumed(self.run_folder, self.conf, steps=6)
        self.assertEqual(outcome.errors, [])
        self.assert_untouched()

    def test_a_missing_summary_is_said_to_be_missing(self):
        os.unlink(os.path.join(self.run_folder, "summary.json"))
        outcome = self.resumed(self.run_folder, self.conf, steps=6)
        self.assertIn("summary.json is not there", outcome.stderr)
        self.assert_untouched()

    def test_another_version_of_the_program_is_named(self):
        path = os.path.join(self.run_folder, "run.json")
        with open(path, encoding="utf-8") as file:
            info = json.load(file)
        self.write(path, {**info, "program": "0.0.9"})
        self.assertIn("begun by penstock 0.0.9",
                      self.resumed(self.run_folder, self.conf, steps=8).stderr)
        self.assertNotIn("begun by",
                         self.resumed(self.trained(self.conf, steps=2), self.conf, steps=4).stderr)

    def test_rows_after_the_commit_and_a_torn_one_are_cut(self):
        metrics = os.path.join(self.run_folder, "metrics.jsonl")
        with open(metrics, encoding="utf-8") as file:
            lines = file.read().splitlines()
        later = lines[-1].replace('"step":6', '"step":7').replace('"step": 6', '"step": 7')
        self.write(metrics, "\n".join([*lines, later, lines[-1][:20]]))
        self.resumed(self.run_folder, self.conf, steps=9)
        whole = self.trained(self.conf, steps=9)
        self.assert_same(self.run_folder, whole)

    def test_a_committed_row_that_never_reached_the_file_is_restored(self):
        metrics = os.path.join(self.run_folder, "metrics.jsonl")
        with open(metrics, encoding="utf-8") as file:
            lines = file.read().splitlines()
        self.write(metrics, "\n".join(lines[:-1]) + "\n")
        self.resumed(self.run_folder, self.conf, steps=9)
        self.assertEqual([row["step"] for row in read_rows(self.run_folder)], list(range(1, 10)))

    def test_without_resume_an_existing_run_is_refused_and_unharmed(self):
        outcome, _ = self.train(self.conf, out=self.run_folder)
        self.assert_fails(outcome, 2, "--resume")
        self.assert_untouched()

    def test_resume_of_no_run_says_so(self):
        outcome = self.resume(self.path("nothing"), self.conf)
        self.assert_fails(outcome, 2, "nothing")

    def test_a_run_in_use_is_refused(self):
        self.runs += 1
        arguments = ["train", "--model", self.make_model(), "--data", self.make_data(), "--config",
                     self.write("long.json", self.conf), "--out", self.run_folder, "--resume",
                     "--steps", "1000000"]
        program = self.running(*arguments)
        self.wait_for_rows(self.run_folder, 8, program)
        self.assert_fails(self.resume(self.run_folder, self.conf), 3, "in use")
        program.send_signal(signal.SIGINT)
        self.assertEqual(program.wait(harness.TIMEOUT_S), 130)

    def test_a_state_that_is_not_there_is_said_so_and_nothing_changes(self):
        state, = harness.state_paths(self.run_folder)
        os.rename(state, state + ".away")
        self.assert_fails(self.resume(self.run_folder, self.conf), 3, state, "mount", "penstock clean")
        os.rename(state + ".away", state)
        self.resumed(self.run_folder, self.conf)

    def test_the_budgets_of_the_summary_are_those_of_the_resumed_run(self):
        self.resumed(self.run_folder, self.conf, "--host-memory", "64MiB", steps=9)
        self.assertEqual(read_summary(self.run_folder)["host_memory_bytes"], 64 << 20)


if __name__ == "__main__":
    harness.main()
