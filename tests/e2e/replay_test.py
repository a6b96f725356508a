"""`penstock replay`: the same steps again, bit for bit, and what it concludes from them."""
import contextlib
import fcntl
import hashlib
import json
import os
import platform
import signal

import harness
from harness import make_config, merge, penstock, read_rows

import fp16_test

EQUAL = r"(?m)^rows: {} equal those of the run, bit for bit$"


@contextlib.contextmanager
def opened(folder):
    fd = os.open(folder, os.O_RDONLY)
    try:
        yield fd
    finally:
        os.close(fd)


def contents(*folders):
    """Everything below these folders: names, and what is in them."""
    found = {}
    for folder in folders:
        for root, _, names in os.walk(folder):
            found[root] = None
            for name in names:
                path = os.path.join(root, name)
                with open(path, "rb") as file:
                    found[path] = hashlib.sha256(file.read()).hexdigest()
    return found


class ReplayTest(harness.PenstockTest):
    def setUp(self):
        super().setUp()
        self.nvme = self.make_folder("nvme")
        self.conf = make_config(dtype="bf16", param="nvme", optimizer="nvme", nvme_path=self.nvme)

    def resumed(self, run, *more, steps, config=None):
        more = more if "--resume-from" in more else ("--resume", *more)
        return self.trained(config or self.conf, *more, steps=steps, out=run)

    def keep(self, run, name):
        self.assertEqual(penstock("snapshot", run, name).code, 0)

    def replay(self, run, *arguments, code=0, env=None):
        """Replays, and checks that nothing of the run, nor of its state, is changed."""
        before = contents(run, self.nvme)
        outcome = penstock("replay", run, *arguments, env=env)
        self.assertEqual(contents(run, self.nvme), before)
        self.assertEqual(outcome.code, code, str(outcome) + outcome.stdout)
        if code < 2:
            self.assertEqual((outcome.errors, outcome.stray), ([], []), str(outcome))
        return outcome

    def concluded(self, conclusion, run, *arguments, code=0):
        outcome = self.replay(run, *arguments, code=code)
        self.assertRegex(outcome.stdout, f"(?m)^conclusion: {conclusion}", str(outcome))
        return outcome


class EqualTest(ReplayTest):
    def test_a_healthy_run_is_repeated_bit_for_bit_and_nothing_is_found(self):
        run = self.trained(self.conf, steps=4)
        self.keep(run, "kept")
        self.resumed(run, steps=9)
        outcome = self.concluded("nothing found$", run, "--from", "kept", "--to", "9")
        self.assertRegex(outcome.stdout, EQUAL.format(5))
        self.assertNotIn("advice", outcome.stdout)
        # Beyond what the run has.
        for name in ("latest", "9"):
            outcome = self.concluded("nothing found$", run, "--from", name, "--to", "11")
            self.assertIn("rows: the run has none of these steps", outcome.stdout)

    def test_every_arithmetic_of_a_run_is_repeated_from_every_placement(self):
        cases = {
            "fp16": fp16_test.fp16_config(fp16=fp16_test.Fp16PlacementTest.SCALE),
            "fp32": make_config(clip=0.0, param="cpu", optimizer="cpu",
                                scheduler={"type": "WarmupDecayLR",
                                           "params": {"warmup_num_steps": 3,
                                                      "total_num_steps": 20}}),
            "bf16": make_config(
                dtype="bf16", micro_batches=3, bf16={"bf16_optimizer_states": True,
                                                     "check_grad_overflow": False},
                communication_data_type="bf16",
                ),
            "ramp": make_config(micro_batches=4, penstock={"rampup_batch_size": [2, 2, 16]}),
        }
        for name, optimizer in (("bf16", "Lion"), ("ramp", "Adagrad")):
            cases[name]["optimizer"] = {"type": optimizer, "params": {"lr": 1e-3}}
        for name, config in cases.items():
            with self.subTest(name):
                run = self.trained(config, steps=3)
                self.keep(run, "kept")
                self.resumed(run, steps=8, config=config)
                outcome = self.concluded("nothing found$", run, "--from", "kept", "--to", "8",
                                         "--scratch", self.nvme)
                self.assertRegex(outcome.stdout, EQUAL.format(5))

    def test_changes_and_skipped_steps_apply_where_the_run_recorded_them(self):
        run = self.trained(self.conf, steps=2)
        self.keep(run, "kept")
        scheduler = '{"type": "WarmupLR", "params": {"warmup_num_steps": 10}}'
        lr = {"optimizer": {"params": {"lr": 2e-3}}}
        self.resumed(run, "--change", "gradient_clipping=0.5", steps=4)
        config = merge(self.conf, {"gradient_clipping": 0.5})
        self.resumed(run, "--change", "optimizer.params.lr=2e-3", "--skip-steps", "6:7", steps=8,
                     config=config)
        self.resumed(run, "--change", "scheduler=" + scheduler, steps=11,
                     config=merge(config, lr))
        self.assertEqual([row["step"] for row in read_rows(run)], [1, 2, 3, 4, 5, 8, 9, 10, 11])
        outcome = self.concluded("nothing found$", run, "--from", "kept", "--to", "11")
        self.assertRegex(outcome.stdout, EQUAL.format(7))
        outcome = self.replay(run, "--from", "kept", "--to", "5", "--dtype", "fp32")
        self.assertIn("in fp32, whose rows are not compared", outcome.stdout)

    def test_several_ranks_are_repeated_by_one_process(self):
        config = make_config(dtype="bf16", micro_batches=2)
        run = self.path("ranks")
        arguments = ["train", "--model", self.make_model(), "--data", self.make_data(), "--config",
                     self.write("ranks.json", config), "--out", run, "--device", "cpu"]
        launch = ("launch", "--ranks", "2", "--", *arguments)
        self.assertEqual(penstock(*launch, "--steps", "2").code, 0)
        self.keep(run, "kept")
        self.assertEqual(penstock(*launch, "--steps", "5", "--resume").code, 0)
        outcome = self.concluded("nothing found$", run, "--from", "kept", "--to", "5")
        self.assertRegex(outcome.stdout, EQUAL.format(3))

    def test_rows_that_are_others_are_named_and_the_exit_code_is_1(self):
        run = self.trained(self.conf, steps=2)
        self.keep(run, "kept")
        self.resumed(run, steps=4)
        path = os.path.join(run, "metrics.jsonl")
        with open(path, encoding="utf-8") as file:
            text = file.read()
        loss = read_rows(run)[3]["loss"]
        self.write(path, text.replace(str(loss), str(loss + 1e-12)))
        outcome = self.replay(run, "--from", "kept", "--to", "4", code=1)
        self.assertRegex(outcome.stdout, rf"rows: 1 differ .*\n  step 4: loss is {loss}, was ")


class ConclusionTest(ReplayTest):
    def test_a_layer_too_hot_for_fp16_is_its_range(self):
        tensors, folder = self.export(self.trained(make_config(), steps=20))
        hot = ["h.1.mlp.c_fc.weight", "h.1.mlp.c_proj.weight"]
        harness.write_safetensors(os.path.join(folder, "model.safetensors"),
                                  fp16_test.scaled(tensors, hot, 2.0**12))
        outcome, run = self.train(fp16_test.fp16_config(), steps=50, model=folder)
        self.assert_fails(outcome, 4, "bf16")
        outcome = self.concluded("fp16's range", run, "--from", "latest", "--to", "2")
        self.assertRegex(outcome.stdout, EQUAL.format(2))
        self.assertRegex(outcome.stdout, r"step 1: the loss is .*h\.1\.mlp.* in forward \(layer 1, "
                         r"micro-batch 0, row \d+\)")
        self.assertRegex(outcome.stdout, r"(?m)^advice: train in bf16")
        self.concluded("fp16's range", run, "--from", "0", "--to", "2", "--dtype", "fp32")
        # One step is enough, though none follows it.
        outcome = self.concluded("fp16's range", run, "--from", "0", "--to", "1")
        self.assertIn("micro-batch 0", outcome.stdout)

    def destroyed(self, dtype="bf16"):
        config = merge(self.conf, {"optimizer": {"params": {"lr": 3e30}},
                                   "bf16": {"enabled": dtype == "bf16"}})
        outcome, run = self.train(config, steps=100)
        self.assert_fails(outcome, 4, "step 0 is committed")
        return run

    def test_weights_that_an_update_destroyed_are_named_with_the_step(self):
        for dtype in ("bf16", "fp32"):
            run = self.destroyed(dtype)
            last = len(read_rows(run))
            outcome = self.concluded("the weights, since the update of step 1$", run, "--from",
                                     "latest", "--to", str(last))
            self.assertRegex(outcome.stdout, EQUAL.format(last))
            self.assertIn("with learning rate 3e+30", outcome.stdout)
            self.concluded("the weights, since the update of step 1$", run, "--from", "0", "--to",
                           "1")

    def test_weights_that_a_commit_has_already_are_named(self):
        model = self.large_model("h.1.mlp.c_fc.weight", 2e39)
        outcome, run = self.train(self.conf, steps=3, model=model)
        self.assert_fails(outcome, 4, "step 0 is committed")
        outcome = self.concluded("the weights, which the commit of step 0 has already", run, "--from",
                                 "latest", "--to", "2")
        self.assertIn("beyond 1e+06", outcome.stdout)

    def test_a_run_that_a_short_streak_ended_is_judged_alike_in_fp32(self):
        config = merge(fp16_test.fp16_config(),
                       {"fp16": {"initial_scale_power": 24, "min_loss_scale": 2.0 ** 22}})
        outcome, run = self.train(config, steps=20)
        self.assert_fails(outcome, 4, "the loss scale is at its minimum")
        last = str(len(read_rows(run)))
        for more in ((), ("--dtype", "fp32")):
            self.concluded("fp16's range", run, "--from", "latest", "--to", last, *more)

    def test_a_row_of_one_rare_token_is_the_data(self):
        text = harness.text_bytes(40000)
        row = 64
        data = bytearray(text)
        at = 40 * 2 * row  # sequential: that of step 41
        data[at:at + row] = b"\x07" * row
        path = self.write("rare.txt", bytes(data))
        run = self.trained(self.conf, "--data-order", "sequential", steps=36, data=path)
        self.keep(run, "kept")
        self.trained(self.conf, "--data-order", "sequential", "--resume", steps=44, data=path,
                     out=run)
        outcome = self.concluded("the data of step 41: rows 80, 81$", run, "--from", "kept", "--to",
                                 "44")
        self.assertRegex(outcome.stdout, EQUAL.format(8))
        self.assertIn("--skip-steps 41:41", outcome.stdout)

    def test_updates_too_large_for_the_weights_are_the_learning_rate(self):
        config = merge(self.conf, {"optimizer": {"params": {"lr": 0.3}}})
        run = self.trained(config, steps=0)
        self.keep(run, "start")
        self.resumed(run, steps=6, config=config)
        outcome = self.concluded("the learning rate: the updates of . steps, from step 1 on", run,
                                 "--from", "start", "--to", "6")
        self.assertRegex(outcome.stdout, EQUAL.format(6))

    def test_a_gradient_that_ended_a_run_which_skips_none_is_searched(self):
        # Of an update that begins before the whole gradient is known, nothing can be computed again.
        config = merge(make_config(clip=0.0), {"optimizer": {"params": {"lr": 1e18}}})
        outcome, run = self.train(config, steps=50)
        self.assert_fails(outcome, 4, "penstock replay RUN --from latest --to ")
        step = outcome.errors[0].split("--to ")[1].split()[0]
        outcome = self.concluded("the weights, since", run, "--from", "latest", "--to", step)
        self.assertIn("micro-batch 0", outcome.stdout)


class MistakeTest(ReplayTest):
    def setUp(self):
        super().setUp()
        self.run_folder = self.trained(self.conf, steps=2)
        self.keep(self.run_folder, "kept")
        self.resumed(self.run_folder, "--skip-steps", "4:5", steps=6)

    def refused(self, code, *arguments, fragments, env=None):
        outcome = self.replay(self.run_folder, *arguments, code=code, env=env)
        self.assert_fails(outcome, code, *fragments)

    def test_commits_and_steps_that_are_not_there(self):
        cases = [
            (("--from", "5", "--to", "9"), ("--from 5", "latest, of step 6", "kept")),
            (("--from", "other", "--to", "9"), ("--from other", "kept")),
            (("--from", "../kept", "--to", "9"), ("--from ../kept",)),
            (("--from", "latest", "--to", "6"), ("--to 6", "of step 6 already")),
            (("--from", "kept", "--to", "4"), ("--to 4", "passed over steps 4 to 5")),
            (("--from", "kept", "--to", "0"), ("--to",)),
            (("--from", "kept", "--to", "3", "--dtype", "bf16"), ("--dtype",)),
            (("--from", "kept"), ("--to",)),
        ]
        for arguments, fragments in cases:
            with self.subTest(arguments):
                self.refused(2, *arguments, fragments=fragments)
        self.refused(2, "--from", "kept", "--to", "3", "--host-memory", "1",
                     fragments=("--host-memory",))
        self.assert_fails(penstock("replay", self.nvme, "--from", "latest", "--to", "3"), 3,
                          self.nvme)
        self.refused(3, "--from", "kept", "--to", "3", "--scratch", self.path("none"),
                     fragments=("--scratch", "none"))

    def test_another_arithmetic_and_other_data(self):
        if platform.machine() == "x86_64":
            narrow = {**os.environ, "ONEDNN_MAX_CPU_ISA": "SSE41"}
            self.refused(2, "--from", "kept", "--to", "3", env=narrow,
                         fragments=("computed with cpu", "but here it would be", "--dtype fp32"))
            self.replay(self.run_folder, "--from", "kept", "--to", "3", "--dtype", "fp32", env=narrow)
        data = self.path("data.txt")
        self.write("data.txt", harness.text_bytes(40000, seed=2))
        self.refused(2, "--from", "kept", "--to", "3",
                     fragments=("other data: data.fingerprint", "put back what " + data))
        os.remove(data)
        self.refused(3, "--from", "kept", "--to", "3", fragments=(data,))

    def test_the_variables_of_a_launcher_at_once(self):
        ranks = {**os.environ, "WORLD_SIZE": "2", "RANK": "0", "MASTER_ADDR": "127.0.0.1",
                 "MASTER_PORT": "1"}
        self.refused(2, "--from", "kept", "--to", "3", env=ranks, fragments=("launcher",))

    def test_a_snapshot_of_steps_that_the_run_gave_up(self):
        self.resumed(self.run_folder, "--resume-from", "kept", "--change",
                     "optimizer.params.lr=2e-3", steps=4)
        self.keep(self.run_folder, "later")
        self.resumed(self.run_folder, "--resume-from", "kept", "--change",
                     "optimizer.params.lr=3e-3", steps=5)
        self.refused(2, "--from", "later", "--to", "5", fragments=("was reset since",))

    def test_it_ends_at_ctrl_c_and_what_a_killed_one_left_is_removed(self):
        for sent, code in ((signal.SIGKILL, -9), (signal.SIGINT, 130)):
            before = contents(self.run_folder, self.nvme)
            program = self.running("replay", self.run_folder, "--from", "kept", "--to", "1000000")
            with open(os.path.join(self.run_folder, "run.json"), encoding="utf-8") as file:
                name = ".replay-" + json.load(file)["run_uuid"]
            scratch = os.path.join(self.run_folder, name, "run")
            self.wait_for_rows(scratch, 5, program)
            lock = os.path.join(self.run_folder, "run.lock")
            with self.assertRaises(BlockingIOError), opened(lock) as fd:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)  # as a training would
            program.send_signal(sent)
            self.assertEqual(program.wait(), code)
            if code == 130:
                self.assertEqual(contents(self.run_folder, self.nvme), before)
            else:
                self.assertTrue(os.path.exists(scratch))
                left = os.path.join(self.run_folder, name)
                self.assertRegex(penstock("clean", self.run_folder).stdout,
                                 rf"(?m)^ *[1-9][0-9.]* ([KM]iB|B)  {left}$")
                outcome = penstock("replay", self.run_folder, "--from", "kept", "--to", "3")
                self.assertEqual(outcome.code, 0, str(outcome))
                self.assertEqual(contents(self.run_folder, self.nvme), before)


if __name__ == "__main__":
    harness.main()
