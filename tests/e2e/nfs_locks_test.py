"""Every command works where files behave as on NFS (nfs_locks.c), and keeps others out."""
import fcntl
import os
import subprocess
import unittest
from unittest import mock

import harness
from harness import make_config
from ranks_harness import RanksTest

# A library that gives locks by these rules (nfs_locks.c).
NFS_LOCKS = os.environ.get("PENSTOCK_NFS_LOCKS", "")


@unittest.skipUnless(NFS_LOCKS, "the library of NFS's locks is not built here")
class NfsLocksTest(harness.PenstockTest):
    def setUp(self):
        super().setUp()
        self.nvme = self.make_folder("nvme")
        self.conf = make_config(dtype="bf16", param="nvme", optimizer="nvme", nvme_path=self.nvme)
        environment = mock.patch.dict(os.environ, LD_PRELOAD=NFS_LOCKS)
        environment.start()
        self.addCleanup(environment.stop)

    def does(self, *arguments):
        outcome = harness.penstock(*arguments)
        self.assertEqual(outcome.code, 0, str(outcome))
        return outcome

    def test_a_run_is_trained_resumed_kept_read_and_cleaned(self):
        for home in ("nvme", "cpu"):
            with self.subTest(home=home):
                conf = make_config(dtype="bf16", param=home, optimizer=home,
                                   nvme_path=self.nvme if home == "nvme" else None)
                run = self.trained(conf, steps=3)
                self.does("snapshot", run, "kept")
                resumed, _ = self.train(conf, "--resume", steps=6, out=run)
                self.assertEqual(resumed.code, 0, str(resumed))
                back, _ = self.train(conf, "--resume-from", "kept", steps=5, out=run)
                self.assertEqual(back.code, 0, str(back))
                self.does("snapshots", run)
                self.does("inspect", run)
                self.assertEqual(harness.penstock("compare", f"{run}/snapshots/kept", run).code, 1)
                self.export(run)
                self.does("replay", run, "--from", "kept", "--to", "5")
                self.does("clean", run)
                self.does("clean", run, "--yes")
                self.assertFalse(os.path.exists(run))
                self.assertEqual(os.listdir(self.nvme), [])

    def test_a_replay_leaves_nothing_in_the_run(self):
        run = self.trained(self.conf, steps=3)
        before = sorted(os.listdir(run))
        self.does("replay", run, "--from", "latest", "--to", "4")
        self.assertEqual(sorted(os.listdir(run)), before)

    def test_a_start_that_fails_leaves_no_folder_in_the_way_of_another(self):
        out = os.path.join(self.folder, "failed")
        bad = make_config(dtype="bf16", param="nvme", optimizer="nvme",
                          nvme_path=os.path.join(self.folder, "missing"))
        for _ in range(2):
            failed, _ = self.train(bad, steps=2, out=out)
            self.assert_fails(failed, failed.code, "missing")
            self.assertFalse(os.path.exists(out), os.path.exists(out) and os.listdir(out))

    def test_rows_that_another_host_removed_are_named(self):
        run = os.path.join(self.folder, "run")
        program = self.running(
            "train", "--model", self.make_model(), "--data", self.make_data(), "--config",
            self.write("config.json", harness.merge(self.conf, {
                "penstock": {"commit_every_steps": 1}})),
            "--out", run, "--steps", "1000000", stderr=subprocess.PIPE)
        self.wait_for_rows(run, 3, program)
        os.unlink(os.path.join(run, "metrics.jsonl"))
        _, stderr = program.communicate(timeout=harness.TIMEOUT_S)
        self.assertEqual(program.returncode, 3, stderr)
        self.assertIn("metrics.jsonl was removed while the run was being trained", stderr)

    def test_a_training_keeps_others_out_and_takes_snapshots_when_asked(self):
        run = os.path.join(self.folder, "run")
        program = self.running(
            "train", "--model", self.make_model(), "--data", self.make_data(), "--config",
            self.write("config.json", self.conf), "--out", run, "--steps", "1000000")
        self.wait_for_rows(run, 3, program)
        for command in (["clean", run], ["replay", run, "--from", "last", "--to", "2"]):
            outcome = harness.penstock(*command)
            self.assert_fails(outcome, outcome.code, "")
            self.assertIn(outcome.code, (2, 3), str(outcome))
        self.assertIn("is in use", harness.penstock("clean", run).errors[0])
        resumed, _ = self.train(self.conf, "--resume", steps=9, out=run)
        self.assert_fails(resumed, 3, "is in use")
        self.does("snapshot", run, "kept")

    def test_a_run_of_an_earlier_version_gets_its_lock(self):
        run = self.trained(self.conf, steps=2)
        lock = os.path.join(run, "run.lock")
        self.assertEqual(os.path.getsize(lock), 0)
        os.unlink(lock)
        resumed, _ = self.train(self.conf, "--resume", steps=4, out=run)
        self.assertEqual(resumed.code, 0, str(resumed))
        with open(lock, "r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            refused, _ = self.train(self.conf, "--resume", steps=5, out=run)
            self.assert_fails(refused, 3, "is in use", run)
            self.does("inspect", run)

    def test_a_lock_that_is_a_link_is_not_followed(self):
        run = self.trained(self.conf, steps=2)
        target = self.write("mine.txt", "mine")
        os.unlink(os.path.join(run, "run.lock"))
        os.symlink(target, os.path.join(run, "run.lock"))
        resumed, _ = self.train(self.conf, "--resume", steps=4, out=run)
        self.assert_fails(resumed, 3, "run.lock")

    def test_no_lock_is_made_in_a_folder_that_is_no_run(self):
        for command in (["--resume"], ["--resume-from", "kept"]):
            folder = self.make_folder("mine")
            refused, _ = self.train(self.conf, *command, steps=4, out=folder)
            self.assertIn(refused.code, (2, 3), str(refused))
            self.assertEqual(os.listdir(folder), [])
        for command in ("inspect", "snapshots"):
            self.assertNotEqual(harness.penstock(command, self.make_folder("file/of")).code, 0)
        self.assertEqual(os.listdir(self.make_folder("file/of")), [])


@unittest.skipUnless(NFS_LOCKS, "the library of NFS's locks is not built here")
class NfsRanksTest(RanksTest):
    def test_a_rank_that_ends_before_the_first_step_leaves_no_folder_behind(self):
        run = self.path("run")
        # 85 million weights are seconds of work.
        model = self.make_model("large", n_layer=12, n_embd=768, n_head=12)
        config = self.config()
        config["penstock"].pop("tile_elements")
        with mock.patch.dict(os.environ, LD_PRELOAD=NFS_LOCKS):
            with self.started(2, run, config, model=model, device_memory="1GiB",
                              host_memory="1GiB") as programs:
                self.wait_until(lambda: os.path.exists(os.path.join(run, "run.json")), programs[0])
                programs[1].kill()
                self.assert_others_end(programs, victim=1, pattern="rank 1 .* ended",
                                       within=harness.TIMEOUT_S)
        self.assertFalse(os.path.exists(run), os.path.exists(run) and os.listdir(run))


if __name__ == "__main__":
    harness.main()
