"""What a commit says is true: it is called made only where it can be read back, and what is wrong is
named where it is not."""
import json
import os
import re
import shutil
import signal
import subprocess

import harness
from harness import make_config, merge, read_rows, read_summary, state_paths

KEPT = re.compile(r"step \d+ is committed|the last commit is step")


class LostFileTest(harness.PenstockTest):
    """Files of a state that are damaged while a run trains on them."""

    def start(self, config):
        """A training that would take very long; returns when it has committed."""
        self.runs += 1
        run = self.path(f"run{self.runs}")
        arguments = ["train", "--model", self.make_model(), "--data",
                     self.make_data(), "--config", self.write("config.json", config), "--out", run,
                     "--steps", "1000000"]
        program = self.running(*arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.wait_for_line("step 3/", program)
        return program, run

    def damages(self, path):
        """(name, what is done to the file, what the error says of it, whether it is lost)"""
        def replace():
            os.rename(path, path + ".away")
            shutil.copyfile(path + ".away", path)

        def lose_heads():
            with open(path, "r+b") as file:
                for offset, whence in ((0, os.SEEK_SET), (-4096, os.SEEK_END)):
                    file.seek(offset, whence)
                    file.write(bytes(4096))

        return [("deleted", lambda: os.unlink(path), "was deleted", True),
                ("moved", lambda: os.rename(path, path + ".away"), "was moved away", False),
                ("replaced", replace, "another file is in its place", False),
                ("emptied", lambda: os.truncate(path, 0), "", True),
                ("heads lost", lose_heads, "head", True)]

    def check(self, config, which=0):
        config = merge(config, {"steps_per_print": 1, "penstock": {"commit_every_steps": 1}})
        for name in [name for name, *_ in self.damages("")]:
            with self.subTest(name, path=which):
                program, run = self.start(config)
                path = state_paths(run)[which]
                [(damage, says, lost)] = [what for known, *what in self.damages(path)
                                          if known == name]
                damage()
                program.send_signal(signal.SIGINT)
                stdout, stderr = program.communicate(timeout=harness.TIMEOUT_S)
                outcome = harness.Outcome(["train"], program.returncode, stdout, stderr)
                self.assertEqual(outcome.code, 3, str(outcome))
                self.assertEqual(outcome.stdout, "")
                [error] = outcome.errors
                self.assertIn(path, error)
                self.assertIn(says, error)
                self.assertIn("and that commit is lost" if lost else
                              "but it cannot be read back now", error)
                self.assertEqual("is lost" in error, lost, error)
                self.assertNotRegex(stderr, KEPT)

    def test_on_nvme(self):
        self.check(make_config(param="nvme", optimizer="nvme", nvme_path=self.make_folder("nvme")))

    def test_of_the_second_drive(self):
        self.check(make_config(param="nvme", optimizer="nvme",
                               nvme_path=[self.make_folder("nvme"), self.make_folder("second")]),
                   which=1)

    def test_a_training_that_loses_one_of_two_heads_resumes_and_says_so(self):
        config = make_config(param="nvme", optimizer="nvme", nvme_path=self.make_folder("nvme"),
                             steps_per_print=1, penstock={"commit_every_steps": 1})
        program, run = self.start(config)
        with open(state_paths(run)[0], "r+b") as file:
            file.write(bytes(4096))
        program.send_signal(signal.SIGINT)
        stdout, stderr = program.communicate(timeout=harness.TIMEOUT_S)
        self.assertEqual(program.returncode, 130, stderr)
        self.assertIn("its other head holds", stderr)
        self.assertRegex(stderr, r"interrupted after step \d+, which is committed")

    def test_in_the_folder_of_the_run(self):
        for home in ("none", "cpu"):
            self.check(make_config(param=home, optimizer=home))


class NumericFailureTest(harness.PenstockTest):
    def config(self, **ours):
        """Updates leave weights that fp16 has, and with which a forward overflows."""
        return merge(make_config(dtype="fp16", param="nvme", optimizer="nvme",
                                 nvme_path=self.make_folder("nvme"), steps_per_print=1),
                     {"optimizer": {"params": {"lr": 3e4}}, "fp16": {"initial_scale_power": 8},
                      "penstock": ours})

    def late_config(self, **ours):
        """The first two steps have a learning rate of 0, and the third ruins the weights."""
        return merge(self.config(**ours),
                     {"scheduler": {"type": "WarmupLR",
                                    "params": {"warmup_max_lr": 3e4, "warmup_num_steps": 10}}})

    def assert_committed(self, run, step):
        inspected = harness.penstock("inspect", run)
        self.assertEqual(inspected.code, 0, str(inspected))
        self.assertRegex(inspected.stdout, rf"committed step +{step}\n")

    def test_the_newest_commit_is_of_the_last_step_whose_weights_gave_a_finite_loss(self):
        outcome, run = self.train(self.late_config(commit_every_steps=1), steps=100)
        self.assert_fails_numerically(outcome, "2 steps in a row",
                                      "the commit of step 3 was taken back", "step 2 is committed",
                                      "--change scheduler.params.warmup_max_lr=")
        self.assert_committed(run, 2)
        self.assertEqual(len(read_rows(run)), 5)

    def test_a_training_that_ends_on_a_loss_that_is_not_finite_keeps_the_commit_before(self):
        outcome, run = self.train(self.late_config(commit_every_steps=1), steps=5)
        self.assert_fails_numerically(outcome, "step 5: the losses of 2 steps in a row",
                                      "step 2 is committed")
        self.assert_committed(run, 2)

    def test_weights_that_an_update_has_plainly_destroyed_are_not_committed(self):
        for home in ("none", "cpu", "nvme"):
            with self.subTest(home):
                config = merge(make_config(dtype="bf16", param=home, optimizer=home,
                                           nvme_path=self.make_folder("nvme")),
                               {"optimizer": {"params": {"lr": 3e30}}})
                outcome, run = self.train(config, steps=1)
                self.assert_fails(outcome, 4, "step 1: the last update, with learning rate 3e+30, "
                                  "has destroyed the weights of wte", "step 0 is committed")
                self.assert_committed(run, 0)

    def test_weights_that_the_first_update_destroyed_give_way_to_those_of_step_0(self):
        outcome, run = self.train(self.config(commit_every_steps=1), steps=100)
        self.assert_fails_numerically(outcome, "the commit of step 1 was taken back",
                                      "step 0 is committed", "--change optimizer.params.lr")
        self.assert_committed(run, 0)

    def test_the_only_commit_stays_and_the_message_says_that_losses_speak_against_it(self):
        outcome, run = self.train(self.config(commit_every_steps=1, durable=False), steps=100)
        self.assert_fails_numerically(outcome, "2 steps in a row",
                                      "no loss after the last commit was finite",
                                      "step 1 is committed", "--change optimizer.params.lr")
        self.assert_committed(run, 1)
        self.assertEqual(len(read_rows(run)), 3)

    def test_a_run_that_ends_on_a_skipped_step_makes_no_commit_over_the_last_good_one(self):
        outcome, run = self.train(self.late_config(commit_every_steps=1), steps=4)
        self.assert_fails_numerically(outcome, "step 4: the loss is not finite",
                                      "the commit of step 3 was taken back", "step 2 is committed")
        self.assert_committed(run, 2)

    def test_weights_that_are_not_finite_are_not_committed_though_losses_are(self):
        # Without eps, the rows of positions that no input reaches become 0 / 0.
        for home in ("none", "cpu", "nvme"):
            with self.subTest(home):
                config = merge(make_config(param=home, optimizer=home,
                                           nvme_path=self.make_folder("nvme")),
                               {"optimizer": {"params": {"eps": 0}}})
                outcome, run = self.train(config, "--sequence-length", "32", steps=3)
                self.assert_fails(outcome, 4, "not finite", "step 0 is committed")
                self.assertEqual(len(read_rows(run)), 3)
                self.assert_committed(run, 0)

    def assert_fails_numerically(self, outcome, *fragments):
        self.assertEqual(outcome.code, 4, str(outcome))
        [error] = outcome.errors
        for fragment in fragments:
            self.assertIn(fragment, error)
        self.assertIn("loss nan", outcome.stderr)
        self.assertNotIn("-nan", outcome.stderr)


class ReadAheadTest(harness.PenstockTest):
    """Nothing is read for a step that never comes."""

    def read_bytes(self, steps, clip):
        run = self.trained(make_config(param="nvme", optimizer="nvme", clip=clip,
                                       nvme_path=self.make_folder("nvme")), steps=steps)
        return read_summary(run)["nvme_read_bytes"]

    def test_every_step_reads_the_states_once(self):
        for clip in (1.0, 0.0):
            with self.subTest(clip=clip):
                one = self.read_bytes(1, clip)
                self.assertGreater(one, 0)
                self.assertEqual([self.read_bytes(steps, clip) for steps in (2, 3)],
                                 [2 * one, 3 * one])


class RunJsonTest(harness.PenstockTest):
    """run.json is held against the commit by everything that opens it."""

    def commands(self, run, config):
        train = ["train", "--model", self.make_model(), "--data", self.make_data(), "--config",
                 config, "--out", run, "--steps", "5"]
        return [["export", run, "--to", self.path("export")], ["inspect", run],
                ["compare", run, self.other], ["compare", self.other, run],
                ["snapshot", run, "kept"], [*train, "--resume"], [*train, "--resume-from", "before"]]

    def test_what_differs_from_the_commit_is_named_by_every_command_and_nothing_is_written(self):
        nvme = self.make_folder("nvme")
        config = make_config(param="nvme", optimizer="nvme", nvme_path=nvme)
        run = self.trained(config, steps=3)
        self.other = self.trained(config, steps=3)
        self.assertEqual(harness.penstock("snapshot", run, "before").code, 0)
        config = self.write("config.json", config)
        changes = [("n_head", lambda info: self.with_model(info, n_head=4),
                    ["model.n_head is 4, was 2"]),
                   ("layer norm", lambda info: self.with_model(info, layer_norm_epsilon=1e-3),
                    ["model.layer_norm_epsilon", "0.001"]),
                   ("no model", lambda info: self.with_training(info, model=""), ["model"]),
                   ("no config", lambda info: self.with_training(info, model="[]"), ["model"]),
                   ("seed", lambda info: self.with_training(info, seed=7), ["seed is 7, was 0"]),
                   ("sequence", lambda info: self.with_training(info, sequence_length=32),
                    ["sequence_length is 32, was 64"]),
                   ("order", lambda info: self.with_training(
                       info, data={**info["training"]["data"], "order": "sequential"}),
                    ['data_order is "sequential", was "shuffle"']),
                   ("state", lambda info: merge(info, {"state": {"uuid": "0" * 32}}), ["0" * 32])]
        for folder in (run, os.path.join(run, "snapshots", "before")):
            info_path = os.path.join(folder, "run.json")
            with open(info_path, encoding="utf-8") as file:
                info = json.load(file)
            for name, change, fragments in changes:
                self.write(info_path, change(info))
                before = self.listing(nvme, run)
                for command in self.commands(folder, config):
                    if folder != run and command[0] in ("snapshot", "train"):
                        continue
                    if folder == run and command[-1] == "before":
                        continue  # the snapshot's run.json is as it was
                    with self.subTest(name, command=command[:3]):
                        outcome = harness.penstock(*command)
                        self.assertEqual(outcome.code, 3, str(outcome))
                        [error] = outcome.errors
                        for fragment in ["run.json", *fragments]:
                            self.assertIn(fragment, error)
                        self.assertNotIn("all verified", outcome.stdout)
                        self.assertEqual(self.listing(nvme, run), before)
                        self.assertFalse(os.path.exists(self.path("export")))
                if folder != run:
                    outcome = harness.penstock(*self.commands(run, config)[-1])
                    self.assertEqual(outcome.code, 3, str(outcome))
                    self.assertIn(fragments[0], outcome.errors[0])
            self.write(info_path, info)

    @staticmethod
    def with_training(info, **change):
        return {**info, "training": {**info["training"], **change}}

    def with_model(self, info, **change):
        model = json.loads(info["training"]["model"])
        return self.with_training(info, model=json.dumps({**model, **change}))

    @staticmethod
    def listing(*folders):
        """Files with their sizes and times: what a command that is refused leaves as they were."""
        files = []
        for top in folders:
            for folder, _, names in os.walk(top):
                for name in names:
                    path = os.path.join(folder, name)
                    files.append((path, os.stat(path).st_size, os.stat(path).st_mtime_ns))
        return sorted(files)


class RowsTest(harness.PenstockTest):
    """metrics.jsonl is cut only where nothing is lost by it."""

    def setUp(self):
        super().setUp()
        self.conf = make_config(param="nvme", optimizer="nvme", nvme_path=self.make_folder("nvme"))
        self.run_folder = self.trained(self.conf, steps=20)
        self.metrics = os.path.join(self.run_folder, "metrics.jsonl")
        with open(self.metrics, "rb") as file:
            self.rows = file.read()
        self.lines = self.rows.splitlines(keepends=True)

    def resume(self, steps=22):
        return self.train(self.conf, "--resume", steps=steps, out=self.run_folder)[0]

    def content(self):
        with open(self.metrics, "rb") as file:
            return file.read()

    def test_damaged_rows_before_the_commit_are_named_and_the_file_is_left_alone(self):
        lines = self.lines
        damages = [("a byte of row 4", [*lines[:3], b"x" + lines[3][1:], *lines[4:]], "line 4"),
                   ("the break behind row 4", [*lines[:3], lines[3][:-1], *lines[4:]], "line 4"),
                   ("row 4 is missing", [*lines[:3], *lines[4:]], "line 4"),
                   ("row 4 twice", [*lines[:4], *lines[3:]], "line 5"),
                   ("row 1 is damaged", [b"x" + lines[0], *lines[1:]], "line 1"),
                   ("rows swapped", [*lines[:3], lines[4], lines[3], *lines[5:]], "line 4"),
                   ("zeros in the middle", [*lines[:3], bytes(4096), *lines[6:]], "line 4")]
        for name, content, says in damages:
            with self.subTest(name):
                self.write(self.metrics, b"".join(content))
                for steps in (20, 22):
                    outcome = self.resume(steps)
                    self.assert_fails(outcome, 3, self.metrics, says, "move")
                    self.assertEqual(self.content(), b"".join(content))
                outcome = harness.penstock("snapshot", self.run_folder, "kept")
                self.assert_fails(outcome, 3, self.metrics, says)
                self.assertEqual(self.content(), b"".join(content))

    def test_a_file_that_ends_early_has_a_gap_that_is_said_once_and_kept(self):
        for name, tail in (("ends", b""), ("torn", self.lines[10][:20]), ("zeros", bytes(4096))):
            with self.subTest(name):
                self.write(self.metrics, b"".join([*self.lines[:10], tail]))
                outcome = self.resume(20)
                self.assertEqual(outcome.code, 0, str(outcome))
                self.assertIn("ends before the rows of steps 11 to 19", outcome.stderr)
                rows = read_rows(self.run_folder)
                self.assertEqual([row["step"] for row in rows], [*range(1, 11), 20])
                self.assertEqual(rows[-1]["previous_row"], 10)
                self.assertEqual(rows[-1]["loss"], json.loads(self.lines[19])["loss"])
                outcome = self.resume(20)
                self.assertEqual(outcome.code, 0, str(outcome))
                self.assertNotIn("ends before the rows", outcome.stderr)
        self.assertEqual(self.resume(22).code, 0)
        self.assertEqual(harness.penstock("snapshot", self.run_folder, "kept").code, 0)
        rows = [row["step"] for row in read_rows(self.run_folder)]
        self.assertEqual(rows, [*range(1, 11), 20, 21, 22])
        lines = self.content().splitlines(keepends=True)
        for name, content in [("before the gap", [*lines[:9], *lines[10:]]),
                              ("behind it", [*lines[:11], *lines[12:]])]:
            with self.subTest(name):
                self.write(self.metrics, b"".join(content))
                self.assert_fails(self.resume(24), 3, self.metrics, "line")
                self.assertEqual(self.content(), b"".join(content))

    def test_a_file_that_was_moved_away_is_begun_anew_with_a_notice(self):
        self.write(self.metrics, b"".join([*self.lines[:3], b"x", *self.lines[4:]]))
        os.rename(self.metrics, self.metrics + ".damaged")
        outcome = self.resume()
        self.assertEqual(outcome.code, 0, str(outcome))
        self.assertIn("no rows of steps 1 to 19", outcome.stderr)
        self.assertEqual([row["step"] for row in read_rows(self.run_folder)], [20, 21, 22])
        outcome = self.resume(24)
        self.assertEqual(outcome.code, 0, str(outcome))
        self.assertEqual([row["step"] for row in read_rows(self.run_folder)],
                         [20, 21, 22, 23, 24])

    def test_everything_after_the_commit_is_cut(self):
        for tail in (b"x", b"{}\n", bytes(100), self.lines[4], self.lines[19][:30]):
            for lines in (self.lines, self.lines[:19]):
                with self.subTest(tail=tail, rows=len(lines)):
                    self.write(self.metrics, b"".join([*lines, tail]))
                    outcome = self.resume(20)
                    self.assertEqual(outcome.code, 0, str(outcome))
                    rows = [row["step"] for row in read_rows(self.run_folder)]
                    self.assertEqual(rows, list(range(1, 21)))


if __name__ == "__main__":
    harness.main()
