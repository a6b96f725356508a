"""A snapshot keeps a commit, independent of the run's later commits, also while it is training."""
import fcntl
import os
import shutil
import signal
import subprocess

import harness
from harness import make_config, merge, read_rows

STEPS = 12
LEFT_FREE = 64 << 20


class SnapshotTest(harness.PenstockTest):
    def setUp(self):
        super().setUp()
        self.nvme = self.make_folder("nvme")
        self.conf = make_config(dtype="bf16", param="nvme", optimizer="nvme", nvme_path=self.nvme)

    def resumed(self, run, *more, steps=STEPS, config=None):
        outcome, _ = self.train(config or self.conf, *more, steps=steps, out=run)
        self.assertEqual(outcome.code, 0, str(outcome))

    def snapshot(self, run, name="kept"):
        outcome = harness.penstock("snapshot", run, name)
        self.assertEqual(outcome.code, 0, str(outcome))
        return os.path.join(run, "snapshots", name)

    def start(self, run, config):
        """A training that continues until it is stopped; it has done some steps."""
        self.runs += 1
        program = self.running(
            "train", "--model", self.make_model(), "--data", self.make_data(), "--config",
            self.write(f"start{self.runs}.json", config), "--out", run, "--steps", "1000000")
        self.wait_for_rows(run, 3, program)
        return program


class FinishedRunTest(SnapshotTest):
    def test_going_back_to_it_gives_the_same_bits_again_and_again(self):
        for placement in ({}, {"param": "cpu", "optimizer": "cpu"},
                          {"nvme_path": [self.nvme, self.make_folder("second")]}):
            home = {"param": "nvme", "optimizer": "nvme", "nvme_path": self.nvme, **placement}
            config = make_config(dtype="bf16", **home)
            with self.subTest(placement=placement):
                run = self.trained(config, steps=5)
                kept = self.numbers(run)
                snapshot = self.snapshot(run)
                self.resumed(run, "--resume", config=config)
                whole = self.numbers(run)
                for _ in range(2):
                    self.resumed(run, "--resume-from", "kept", steps=8, config=config)
                    self.resumed(run, "--resume", config=config)
                    self.assertEqual(self.numbers(run), whole)
                self.assertEqual(self.numbers(snapshot), kept)
                self.assertEqual(harness.penstock("inspect", snapshot).code, 0)
                self.assertEqual(harness.penstock("compare", snapshot, run).code, 1)

    def test_it_outlives_a_damaged_run(self):
        run = self.trained(self.conf, steps=5)
        self.snapshot(run)
        state, = harness.state_paths(run)
        with open(state, "r+b") as file:
            file.truncate(4096)
        outcome, _ = self.train(self.conf, "--resume", steps=STEPS, out=run)
        self.assertEqual(outcome.code, 3, str(outcome))
        self.resumed(run, "--resume-from", "kept")
        self.assertEqual(self.numbers(run), self.numbers(self.trained(self.conf, steps=STEPS)))

    def test_they_are_listed(self):
        run = self.trained(self.conf, steps=2)
        self.assertEqual(harness.penstock("snapshots", run).stdout, "no snapshots\n")
        self.snapshot(run, "b")
        self.resumed(run, "--resume", steps=4)
        self.snapshot(run, "a")
        lines = harness.penstock("snapshots", run).stdout.splitlines()
        self.assertRegex(lines[0], r"^a +step 4 ")
        self.assertRegex(lines[1], r"^b +step 2 ")

    def test_clean_takes_them_along_and_one_by_one(self):
        run = self.trained(self.conf, steps=2)
        first, _ = self.snapshot(run, "first"), self.snapshot(run, "second")
        self.assertEqual(len(harness.states_in(self.nvme)), 3)
        self.assertEqual(harness.penstock("clean", first, "--yes").code, 0)
        self.assertEqual(len(harness.states_in(self.nvme)), 2)
        self.assertEqual(harness.penstock("clean", run, "--yes").code, 0)
        self.assertEqual(os.listdir(self.nvme), [])
        self.assertFalse(os.path.exists(run))

    def test_of_an_unfinished_one_only_its_own_unused_files_are_removed(self):
        run = self.trained(self.conf, steps=2)
        snapshot = self.snapshot(run)
        copy, = harness.state_paths(snapshot)
        os.rename(snapshot, os.path.join(run, "snapshots", ".kept.unfinished"))
        with open(copy, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH)
            self.assert_fails(harness.penstock("snapshot", run, "kept"), 3, "in use", copy)
        shutil.move(copy, copy + ".aside")
        shutil.copy(harness.state_path(self.trained(self.conf, steps=2)), copy)
        for command in (["snapshot", run, "kept"], ["clean", run, "--yes"]):
            self.assert_fails(harness.penstock(*command), 3, "belongs to the state", copy)
        outcome, _ = self.train(self.conf, "--resume", steps=3, out=run)
        self.assertEqual(outcome.code, 0, str(outcome))
        self.assertRegex(outcome.stderr, f"penstock: .*left behind: {copy} .*belongs to the state")
        shutil.move(copy + ".aside", copy)
        self.resumed(run, "--resume", steps=4)
        self.assertFalse(os.path.exists(copy))

    def test_a_file_in_the_place_of_its_state_is_not_replaced(self):
        run = self.trained(self.conf, steps=2)
        snapshot = self.snapshot(run)
        copy, = harness.state_paths(snapshot)
        shutil.rmtree(snapshot)
        self.assert_fails(harness.penstock("snapshot", run, "kept"), 2, copy, "already")
        self.assertTrue(os.path.exists(copy))
        self.snapshot(run, "other")

    def test_none_is_taken_of_a_snapshot(self):
        run = self.trained(self.conf, steps=2)
        snapshot = self.snapshot(run)
        for path in (snapshot, snapshot + "/", os.path.join(run, "snapshots", "..", "snapshots", "kept")):
            self.assert_fails(harness.penstock("snapshot", path, "more"), 2, "is a snapshot", run)
        self.assertEqual(os.listdir(os.path.join(run, "snapshots")), ["kept"])

    def test_bad_names_and_snapshots_that_are_not_there_are_refused(self):
        run = self.trained(self.conf, steps=2)
        self.snapshot(run)
        for name in ("", ".hidden", "a/b", "x" * 65, "kept"):
            with self.subTest(name=name):
                self.assert_fails(harness.penstock("snapshot", run, name), 2)
        outcome, _ = self.train(self.conf, "--resume-from", "none", out=run)
        self.assert_fails(outcome, 2, "none")
        self.assert_fails(harness.penstock("snapshot", self.path("no-run"), "x"), 3, "no-run")

    def test_a_full_drive_leaves_run_and_drive_as_they_were(self):
        config = make_config(dtype="bf16", param="cpu", optimizer="cpu")
        drive = self.make_folder("drive")
        with harness.mounted(drive, ["-t", "tmpfs", "-o", "size=5M", "none"]):
            run = os.path.join(drive, "run")
            outcome, _ = self.train(config, steps=3, out=run)
            self.assertEqual(outcome.code, 0, str(outcome))
            self.assert_fails(harness.penstock("snapshot", run, "kept"), 3, "no space", "are free")
            self.assertEqual(harness.penstock("snapshots", run).stdout, "no snapshots\n")
            self.assertEqual(harness.penstock("inspect", run).code, 0)
            subprocess.run(["mount", "-o", "remount,size=140M", drive], check=True)
            self.snapshot(run)
            self.resumed(run, "--resume-from", "kept", steps=5, config=config)

    def test_paths_on_one_drive_share_its_space(self):
        image = self.write("image", b"")
        os.truncate(image, 400 << 20)
        subprocess.run(["mkfs.ext4", "-q", "-m", "0", image], check=True)
        drive = self.make_folder("drive")
        with harness.mounted(drive, ["-o", "loop", image]):
            def free():
                return os.statvfs(drive).f_bavail * os.statvfs(drive).f_frsize

            paths = [self.make_folder("drive/0"), self.make_folder("drive/1")]
            run = self.trained(make_config(dtype="bf16", param="nvme", optimizer="nvme",
                                           nvme_path=paths), steps=2)
            before = free()
            self.snapshot(run)
            size = before - free()
            self.assertEqual(
                harness.penstock("clean", os.path.join(run, "snapshots", "kept"), "--yes").code, 0)
            room = LEFT_FREE + size * 3 // 4
            with open(os.path.join(drive, "ballast"), "wb") as file:
                os.posix_fallocate(file.fileno(), 0, free() - room)
            self.assert_fails(harness.penstock("snapshot", run, "kept"), 3, "no space")
            os.truncate(os.path.join(drive, "ballast"), 0)
            self.snapshot(run)

    @harness.needs_strace
    def test_space_is_reserved_before_anything_is_copied(self):
        run = self.trained(self.conf, steps=2)

        def snapshot(error):
            # The first is for the note of what is begun.
            return subprocess.run(
                ["strace", "-f", "-qqq", "-o", "/dev/null", "-e", "trace=fallocate", "-e",
                 f"inject=fallocate:error={error}:when=2+", harness.PROGRAM, "snapshot", run, "kept"],
                capture_output=True, text=True, timeout=harness.TIMEOUT_S, check=False)

        done = snapshot("ENOSPC")
        self.assertEqual(done.returncode, 3, done.stderr)
        self.assertIn("reserving", done.stderr)
        self.assertEqual(harness.states_in(self.nvme), [os.path.basename(harness.state_path(run))])
        self.assertEqual(os.listdir(os.path.join(run, "snapshots")), [])
        done = snapshot("EOPNOTSUPP")
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_where_the_file_system_can_it_takes_no_space(self):
        image = self.write("image", b"")
        os.truncate(image, 400 << 20)
        if shutil.which("mkfs.xfs") is None:
            self.skipTest("mkfs.xfs is not installed")
        subprocess.run(["mkfs.xfs", "-q", image], check=True)
        drive = self.make_folder("drive")
        with harness.mounted(drive, ["-o", "loop", image]):
            config = merge(self.conf, make_config(dtype="bf16", param="nvme", optimizer="nvme",
                                                  nvme_path=drive))
            run = self.trained(config, steps=3)
            size = os.path.getsize(harness.state_paths(run)[0])
            before = os.statvfs(drive)
            self.snapshot(run)
            after = os.statvfs(drive)
            self.assertLess((before.f_bfree - after.f_bfree) * before.f_frsize, size // 4)
            self.resumed(run, "--resume", steps=5, config=config)
            self.resumed(run, "--resume-from", "kept", steps=5, config=config)
            shutil.rmtree(run)


class TrainingRunTest(SnapshotTest):
    def test_it_is_taken_while_training_continues(self):
        for durable in (True, False):
            with self.subTest(durable=durable):
                config = merge(self.conf, {"penstock": {"durable": durable}})
                run = self.path(f"live{durable}")
                program = self.start(run, config)
                snapshot = self.snapshot(run)
                rows = len(read_rows(run))
                self.wait_for_rows(run, rows + 5, program)
                self.snapshot(run, "later")
                program.send_signal(signal.SIGKILL)
                program.wait(harness.TIMEOUT_S)
                step = len(read_rows(snapshot))
                self.assertGreater(len(read_rows(os.path.join(run, "snapshots", "later"))), step)
                self.assertEqual(self.numbers(snapshot),
                                 self.numbers(self.trained(config, steps=step)))
                self.resumed(run, "--resume-from", "kept", steps=step + 3, config=config)
                self.assertEqual(self.numbers(run), self.numbers(self.trained(config, steps=step + 3)))

    def test_a_training_that_cannot_take_it_says_why_and_continues(self):
        drive = self.make_folder("drive")
        with harness.mounted(drive, ["-t", "tmpfs", "-o", "size=5M", "none"]):
            run = os.path.join(drive, "run")
            program = self.start(run, make_config(dtype="bf16", param="cpu", optimizer="cpu"))
            self.assert_fails(harness.penstock("snapshot", run, "kept"), 3, "no space", "are free")
            self.wait_for_rows(run, len(read_rows(run)) + 3, program)
            program.send_signal(signal.SIGINT)
            self.assertEqual(program.wait(harness.TIMEOUT_S), 130)
            self.assertEqual(harness.penstock("inspect", run).code, 0)

    def test_a_lock_that_cannot_be_opened_ends_the_wait_for_an_answer(self):
        run = self.path("live")
        program = self.start(run, self.conf)
        program.send_signal(signal.SIGSTOP)
        asks = self.running("snapshot", run, "kept", stderr=subprocess.PIPE)
        request = os.path.join(run, "snapshots", ".kept.request")
        self.wait_until(lambda: os.path.exists(request), asks)
        lock = os.path.join(run, "run.lock")
        os.rename(lock, lock + ".aside")
        os.mkdir(lock)
        _, stderr = asks.communicate(timeout=harness.TIMEOUT_S)
        self.assertEqual(asks.returncode, 3, stderr)
        self.assertIn(lock, stderr)
        self.assertFalse(os.path.exists(request))

    def test_a_name_that_is_taken_is_refused_and_training_continues(self):
        run = self.path("live")
        program = self.start(run, self.conf)
        self.snapshot(run)
        self.assert_fails(harness.penstock("snapshot", run, "kept"), 2, "already")
        self.wait_for_rows(run, len(read_rows(run)) + 3, program)


if __name__ == "__main__":
    harness.main()
