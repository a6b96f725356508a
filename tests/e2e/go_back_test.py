"""A run goes back to a good state and on from there with other numbers, and says what it did."""
import json
import os

import harness
from harness import make_config, merge, read_rows

STEPS = 8


class GoBackTest(harness.PenstockTest):
    def setUp(self):
        super().setUp()
        self.conf = make_config(dtype="bf16", param="nvme", optimizer="nvme",
                                nvme_path=self.make_folder("nvme"))

    def resume(self, run, *more, steps=STEPS, config=None):
        outcome, _ = self.train(config or self.conf, *more, steps=steps, out=run)
        return outcome

    def resumed(self, run, *more, **keywords):
        more = more if "--resume-from" in more else ("--resume", *more)
        outcome = self.resume(run, *more, **keywords)
        self.assertEqual(outcome.code, 0, str(outcome))
        return outcome

    def info(self, run):
        with open(os.path.join(run, "run.json"), encoding="utf-8") as file:
            return json.load(file)

    def rows_without_times(self, run):
        return [[row.get(key) for key in ("step", "loss", "grad_norm", "lr")]
                for row in read_rows(run)]


class ChangeTest(GoBackTest):
    LR = ("--change", "optimizer.params.lr=1e-4")

    def setUp(self):
        super().setUp()
        self.changed = merge(self.conf, {"optimizer": {"params": {"lr": 1e-4}}})

    def test_a_changed_learning_rate_holds_from_the_next_step_on_and_is_kept(self):
        run = self.trained(self.conf, steps=4)
        outcome = self.resumed(run, *self.LR, steps=6)
        self.assertIn("changed from step 5 on: optimizer.params.lr: 0.001 -> 0.0001",
                      outcome.stderr)
        rows = read_rows(run)
        self.assertEqual([row["lr"] for row in rows], [1e-3] * 4 + [1e-4] * 2)
        self.assertEqual([row["step"] for row in rows if "changed" in row], [5])
        self.assertEqual(rows[4]["changed"], ["optimizer.params.lr"])
        change = {"step": 4, "key": "optimizer.params.lr", "old": 1e-3, "new": 1e-4}
        self.assertEqual(self.info(run)["changes"], [change])
        # From now on the new value is the run's.
        self.assert_fails(self.resume(run, "--resume"), 2,
                          "the run changed optimizer.params.lr: 0.001 -> 0.0001 after step 4")
        self.resumed(run, config=self.changed)
        self.assertEqual(self.info(run)["changes"], [change])
        inspected = harness.penstock("inspect", run)
        self.assertRegex(inspected.stdout,
                         r"(?m)^changed +optimizer.params.lr: 0.001 -> 0.0001, from step 5 on$")

    def test_a_change_is_the_same_in_every_placement_and_wherever_it_is_cut_off(self):
        run = self.trained(self.conf, steps=4)
        self.resumed(run, *self.LR)
        other = self.trained(make_config(dtype="bf16"), steps=4)
        self.resumed(other, *self.LR, steps=6, config=make_config(dtype="bf16"))
        self.resumed(other, config=self.changed)
        self.assertEqual(self.rows_without_times(run), self.rows_without_times(other))
        self.assert_equal_bits(run, other)

    def test_a_change_that_is_no_change_or_not_all_is_refused_and_nothing_is_touched(self):
        run = self.trained(self.conf, steps=4)
        before = self.info(run)
        both = merge(self.changed, {"gradient_clipping": 0.5})
        cases = [
            (self.conf, ("--change", "optimizer.params.lr=0.001"), "already (0.001)"),
            (self.conf, ("--change", "optimizer.params.lrr=0.001"), "optimizer.params.lrr"),
            (self.conf, ("--change", "optimizer.params.lr=-1"), "optimizer.params.lr: -1"),
            (both, self.LR, "--change 'gradient_clipping=0.5'"),
            (self.changed, (), "--change 'optimizer.params.lr=0.0001'"),
        ]
        for config, more, fragment in cases:
            with self.subTest(fragment):
                outcome = self.resume(run, "--resume", *more, config=config)
                self.assert_fails(outcome, 2, fragment)
                self.assertEqual(self.info(run), before)

    def test_a_schedule_may_begin_later(self):
        run = self.trained(self.conf, steps=4)
        scheduler = {"type": "WarmupLR", "params": {"warmup_num_steps": 10, "warmup_type": "linear"}}
        self.resumed(run, "--change", "scheduler=" + json.dumps(scheduler))
        for row in read_rows(run)[4:]:
            self.assertAlmostEqual(row["lr"], 1e-3 * (row["step"] - 2) / 10)
        self.assertEqual(self.info(run)["changes"][0]["old"], None)
        self.resumed(run, config=merge(self.conf, {"scheduler": scheduler}), steps=STEPS + 1)

    def test_a_rate_that_the_schedule_decides_is_changed_there_and_not_in_the_optimizer(self):
        params = {"warmup_max_lr": 1e-3, "warmup_num_steps": 2}
        config = merge(self.conf, {"scheduler": {"type": "WarmupLR", "params": params}})
        run = self.trained(config, steps=4)
        self.assert_fails(self.resume(run, "--resume", *self.LR, config=config), 2,
                          "scheduler.params.warmup_max_lr decides the learning rate")
        self.resumed(run, "--change", "scheduler.params.warmup_max_lr=1e-4", config=config)
        self.assertEqual([row["lr"] for row in read_rows(run)][3:], [1e-3] + [1e-4] * 4)

    def test_a_change_goes_with_the_commit_that_a_run_goes_back_to(self):
        run = self.trained(self.conf, steps=3)
        self.assertEqual(harness.penstock("snapshot", run, "kept").code, 0)
        self.resumed(run, *self.LR, steps=5)
        self.resumed(run, "--resume-from", "kept", steps=5)
        self.assertNotIn("changes", self.info(run))
        self.assertEqual({row["lr"] for row in read_rows(run)}, {1e-3})
        self.resumed(run, "--resume-from", "kept", "--change", "gradient_clipping=0.5", steps=5)
        self.assertEqual([change["key"] for change in self.info(run)["changes"]],
                         ["gradient_clipping"])


class BatchChangeTest(GoBackTest):
    BATCH = ("--change", "gradient_accumulation_steps=3")

    def test_a_changed_batch_takes_the_rows_that_follow_wherever_it_is_cut_off_and_is_replayed(self):
        larger = merge(self.conf, {"gradient_accumulation_steps": 3})
        run = self.trained(self.conf, steps=3)
        self.assertEqual(harness.penstock("snapshot", run, "kept").code, 0)
        outcome = self.resumed(run, *self.BATCH, steps=7)
        self.assertIn("changed from step 4 on: ", outcome.stderr)
        rows = read_rows(run)
        self.assertEqual([row["tokens"] // rows[0]["tokens"] for row in rows], [1] * 3 + [3] * 4)
        self.assertEqual(sorted(rows[3]["changed"]), ["gradient_accumulation_steps",
                                                      "train_batch_size"])
        other = self.trained(make_config(dtype="bf16"), steps=3)
        cpu = make_config(dtype="bf16", param="cpu", optimizer="cpu")
        self.resumed(other, *self.BATCH, steps=5, config=cpu)
        self.resumed(other, config=larger, steps=7)
        self.assertEqual(self.numbers(run), self.numbers(other))
        self.assert_fails(self.resume(run, "--resume", config=self.conf), 2, "train_batch_size")
        replayed = harness.penstock("replay", run, "--from", "kept", "--to", "7")
        self.assertEqual(replayed.code, 0, str(replayed))
        self.assertIn("rows: 4 equal those of the run, bit for bit", replayed.stdout)

    def test_an_epoch_ends_with_the_data_though_the_batch_was_changed(self):
        small = self.make_data("small.txt", 20 * 64)  # 19 rows and more
        data = {"data": small}
        outcome, run = self.train(self.conf, "--sequence-length", "64", steps=3, **data)
        self.assertEqual(outcome.code, 0, str(outcome))
        outcome, _ = self.train(self.conf, "--resume", "--change", "gradient_accumulation_steps=3",
                                "--sequence-length", "64", steps=None, out=run, **data)
        self.assertEqual(outcome.code, 0, str(outcome))
        self.assertEqual(len(read_rows(run)), 3 + (19 - 6) // 6)


class SkipTest(GoBackTest):
    SKIP = ("--skip-steps", "6:8")

    def test_steps_are_passed_over_with_their_data_and_the_state_stands_still(self):
        run = self.trained(self.conf, steps=4)
        outcome = self.resumed(run, *self.SKIP, steps=10)
        self.assertIn("steps 6 to 8 are passed over", outcome.stderr)
        rows = read_rows(run)
        self.assertEqual([row["step"] for row in rows], [1, 2, 3, 4, 5, 9, 10])
        self.assertEqual(rows[5]["previous_row"], 5)
        self.assertEqual(self.info(run)["skip_steps"], [{"first": 6, "last": 8}])
        inspected = harness.penstock("inspect", run)
        self.assertRegex(inspected.stdout, r"(?m)^committed step +10$")
        self.assertRegex(inspected.stdout, r"(?m)^optimizer steps +7$")
        self.assertRegex(inspected.stdout, r"(?m)^passed over +steps 6 to 8$")
        whole = self.trained(self.conf, steps=6)
        self.assertNotEqual(read_rows(whole)[5]["loss"], rows[5]["loss"], "its data is of step 9")

    def test_a_run_passes_over_them_wherever_it_was_cut_off_and_in_every_placement(self):
        run = self.trained(self.conf, steps=4)
        self.resumed(run, *self.SKIP, steps=10)
        other = self.trained(make_config(dtype="bf16"), steps=2)
        # Those of a later step are a plan, and the same command may be given again.
        self.resumed(other, *self.SKIP, steps=5, config=make_config(dtype="bf16"))
        self.resumed(other, *self.SKIP, steps=9)
        self.assertEqual(harness.penstock("snapshot", other, "kept").code, 0)
        self.resumed(other, *self.SKIP, steps=10)
        self.resumed(other, "--resume-from", "kept", steps=10)
        self.assertEqual(self.rows_without_times(run), self.rows_without_times(other))
        self.assert_equal_bits(run, other)

    def test_what_cannot_be_passed_over_is_refused_and_nothing_is_touched(self):
        run = self.trained(self.conf, steps=4)
        before = self.info(run)
        for skip, steps, fragment in (("4:5", 9, "step 4 is committed"), ("6:9", 9, "--steps 10")):
            with self.subTest(skip):
                outcome = self.resume(run, "--resume", "--skip-steps", skip, steps=steps)
                self.assert_fails(outcome, 2, "--skip-steps " + skip, fragment)
                self.assertEqual(self.info(run), before)

    def test_a_row_after_them_that_never_reached_the_file_is_restored(self):
        run = self.trained(self.conf, steps=4)
        self.resumed(run, *self.SKIP, steps=9)
        metrics = os.path.join(run, "metrics.jsonl")
        with open(metrics, encoding="utf-8") as file:
            lines = file.read().splitlines(keepends=True)
        self.write(metrics, "".join(lines[:-1]))
        outcome = self.resumed(run, steps=10)
        self.assertNotIn("missing", outcome.stderr)
        self.assertEqual([row["step"] for row in read_rows(run)], [1, 2, 3, 4, 5, 9, 10])


class AutomaticSnapshotTest(GoBackTest):
    def config(self, every=3, keep=2):
        return merge(self.conf, {"penstock": {"snapshot_every_steps": every, "keep_snapshots": keep}})

    def names(self, run):
        return sorted(os.listdir(os.path.join(run, "snapshots")))

    def snapshot(self, run, step):
        return os.path.join(run, "snapshots", f"auto-{step}")

    def train_to(self, run, *steps, config=None):
        """One program for each: it copies a commit to the end before it makes its last."""
        for last in steps:
            self.resumed(run, config=config or self.config(), steps=last)

    def test_commits_that_a_later_loss_confirmed_are_kept_and_the_oldest_removed(self):
        run = self.trained(self.config(), steps=4)
        self.assertEqual(self.names(run), ["auto-3"])
        self.train_to(run, 7, 10)
        self.assertEqual(self.names(run), ["auto-6", "auto-9"])
        self.assertEqual(len(harness.states_in(self.path("nvme"))), 3, "a state for each, and the run's")
        for step in (6, 9):
            self.assert_equal_bits(self.snapshot(run, step), self.trained(self.conf, steps=step))
            self.assertEqual(len(read_rows(self.snapshot(run, step))), step)
        whole = self.numbers(run)
        self.assertEqual(whole, self.numbers(self.trained(self.conf, steps=10)))
        self.resumed(run, "--resume-from", "auto-6", config=self.config(), steps=10)
        self.assertEqual(self.numbers(run), whole)
        # That of step 9 was taken again, as the fourth; that of step 6 is the oldest.
        self.assertEqual(self.names(run), ["auto-6", "auto-9"])
        self.assertEqual(json.loads(self.info_of(self.snapshot(run, 9)))["automatic"], 4)
        self.train_to(run, 13)
        self.assertEqual(self.names(run), ["auto-12", "auto-9"])

    def test_the_last_commit_of_a_program_is_not_kept_as_nothing_has_confirmed_it(self):
        run = self.trained(self.config(), steps=3)
        self.assertFalse(os.path.exists(os.path.join(run, "snapshots")))

    def info_of(self, snapshot):
        with open(os.path.join(snapshot, "run.json"), encoding="utf-8") as file:
            return file.read()

    def test_one_is_kept_beside_commits_of_every_step(self):
        config = merge(self.config(every=4, keep=1), {"penstock": {"commit_every_steps": 1}})
        run = self.trained(config, steps=5)
        self.train_to(run, 9, config=config)
        self.assertEqual(self.names(run), ["auto-8"])
        self.assert_equal_bits(self.snapshot(run, 8), self.trained(self.conf, steps=8))

    def test_what_a_user_keeps_under_such_a_name_stays(self):
        run = self.trained(self.conf, steps=2)
        self.assert_fails(harness.penstock("snapshot", run, "auto-3"), 2, "auto-3", "take another")
        self.assertEqual(harness.penstock("snapshot", run, "kept").code, 0)
        os.rename(os.path.join(run, "snapshots", "kept"), self.snapshot(run, 3))
        before = self.info_of(self.snapshot(run, 3))
        outcome = self.resumed(run, config=self.config(keep=1), steps=4)
        self.assertIn("automatic snapshots: there is", outcome.stderr)
        self.train_to(run, 7, 10, config=self.config(keep=1))
        self.assertEqual(self.names(run), ["auto-3", "auto-9"])
        self.assertEqual(self.info_of(self.snapshot(run, 3)), before)

    def test_one_that_cannot_be_removed_stays_until_the_next_time(self):
        run = self.trained(self.config(keep=1), steps=4)
        self.assertEqual(self.names(run), ["auto-3"])
        state = harness.state_path(self.snapshot(run, 3))
        os.rename(state, state + ".aside")
        os.symlink(state + ".aside", state)
        outcome = self.resumed(run, config=self.config(keep=1), steps=7)
        self.assertIn("automatic snapshots: auto-6 is kept, and auto-3, which is too many, stays: ",
                      outcome.stderr)
        self.assertEqual(self.names(run), ["auto-3", "auto-6"])
        os.rename(state + ".aside", state)
        self.train_to(run, 10, config=self.config(keep=1))
        self.assertEqual(self.names(run), ["auto-9"])


class DestroyedTest(GoBackTest):
    """The first update is finite and destroys the weights; every later loss is not finite."""

    LR = ("--change", "optimizer.params.lr=1e-3")

    def test_a_run_whose_first_update_destroyed_its_weights_goes_back_to_step_0(self):
        config = merge(self.conf, {"optimizer": {"params": {"lr": 3e30}},
                                   "penstock": {"commit_every_steps": 1}})
        for more in ((), ("--resume",)):
            outcome, run = self.train(config, *more, steps=100, out=self.path("run"))
            self.assert_fails(outcome, 4, "step 0 is committed", "--change optimizer.params.lr")
        exported = harness.penstock("export", run, "--to", self.path("exported"))
        self.assertEqual((exported.code, exported.stderr), (0, ""), str(exported))
        self.assertNotIn("unhealthy", harness.penstock("inspect", run).stdout)
        self.resumed(run, *self.LR, config=config, steps=100)
        whole = self.trained(self.conf, steps=100)
        self.assertEqual(self.rows_without_times(run), self.rows_without_times(whole))
        self.assert_equal_bits(run, whole)
        self.assertLess(read_rows(run)[-1]["loss"], 3)

    def test_every_home_can_go_back(self):
        for home in ("none", "cpu"):
            with self.subTest(home):
                config = merge(make_config(dtype="bf16", param=home, optimizer=home),
                               {"optimizer": {"params": {"lr": 3e30}}})
                outcome, run = self.train(config, steps=3)
                self.assert_fails(outcome, 4, "step 0 is committed")
                self.resumed(run, *self.LR, config=config, steps=3)
                self.assert_equal_bits(run, self.trained(self.conf, steps=3))


class RanksTest(GoBackTest):
    def launched(self, run, config, *more, steps):
        self.runs += 1
        outcome = harness.penstock(
            "launch", "--ranks", "2", "--", "train", "--model", self.make_model(), "--data",
            self.make_data(), "--config", self.write(f"ranks{self.runs}.json", config), "--out", run,
            "--device", "cpu", "--steps", str(steps), *more)
        self.assertEqual(outcome.code, 0, str(outcome))

    def test_ranks_go_back_and_on_as_one_does(self):
        home = {"dtype": "bf16", "param": "nvme", "optimizer": "nvme",
                "nvme_path": self.path("nvme")}
        one = make_config(micro_batches=2, **home)
        two = make_config(micro_batches=1, **home,
                          penstock={"snapshot_every_steps": 3, "keep_snapshots": 1})
        more = ("--resume", *ChangeTest.LR, *SkipTest.SKIP)
        run = self.path("ranks")
        self.launched(run, two, steps=4)
        self.launched(run, two, *more, steps=10)
        self.assertEqual(os.listdir(os.path.join(run, "snapshots")), ["auto-9"])
        alone = self.trained(one, steps=4)
        self.resumed(alone, *more[1:], config=one, steps=10)
        self.assertEqual(self.numbers(run), self.numbers(alone))


class HealthTest(GoBackTest):
    """What reads a commit says so if no healthy training has such values."""

    def test_a_commit_of_destroyed_weights_is_intact_and_named(self):
        model = self.large_model("h.1.mlp.c_fc.weight", 1e32)
        for dtype in ("fp32", "bf16"):
            with self.subTest(dtype):
                config = merge(self.conf, {"bf16": {"enabled": dtype == "bf16"}})
                run = self.trained(config, steps=0, model=model)
                inspected = harness.penstock("inspect", run)
                self.assertEqual(inspected.code, 0, str(inspected))
                self.assertRegex(inspected.stdout, r"(?m)^unhealthy values +h\.1\.mlp\.c_fc\.weight: "
                                 r"of 16384 weights \d+ are beyond 1e\+06, up to \S+e\+3.$")
                self.assertIn("all verified", inspected.stdout)
                exported = harness.penstock("export", run, "--to", run + "-exported")
                self.assertEqual(exported.code, 0, str(exported))
                self.assertRegex(exported.stderr, r"step 0 of .* has 1 tensors? with weights that are "
                                 r"not finite or beyond 1e\+06")

    def test_a_healthy_one_is_not(self):
        run = self.trained(self.conf, steps=3)
        self.assertNotIn("unhealthy", harness.penstock("inspect", run).stdout)
        self.assertNotIn("skipped", harness.penstock("inspect", run).stdout)
        exported = harness.penstock("export", run, "--to", run + "-exported")
        self.assertEqual(exported.stderr, "")

    def test_steps_that_were_skipped_just_before_it_are_named(self):
        config = merge(make_config(dtype="fp16", param="nvme", optimizer="nvme",
                                   nvme_path=self.path("nvme")),
                       {"fp16": {"initial_scale_power": 24}})
        run = self.trained(config, steps=1)
        self.assertRegex(harness.penstock("inspect", run).stdout, r"(?m)^skipped in a row +1, ")
        exported = harness.penstock("export", run, "--to", run + "-exported")
        self.assertIn("the last 1 steps before step 2", exported.stderr)


if __name__ == "__main__":
    harness.main()
