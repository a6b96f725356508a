"""Other runs, damaged descriptions and folders that go away: a run's commands harm only what is its own.

Nothing outside RUN changes, nothing that is not the run's is removed, and each command ends, with
one line.
"""
import json
import os
import shutil
import signal
import subprocess

import harness
from harness import make_config
from hostile_run import HostileFolderTest


def paths_in(info):
    """Of the state of one rank."""
    return info["state"]["ranks"][0]["paths"]


class ForeignTest(HostileFolderTest):
    def setUp(self):
        super().setUp()
        self.other = self.trained(self.conf, steps=3)
        self.other_state = harness.state_path(self.other)

    def assert_other_is_whole(self, where):
        outcome = harness.penstock("inspect", where)
        self.assertEqual(outcome.code, 0, str(outcome))
        self.assertTrue(os.path.exists(self.other_state))

    def test_another_run_below_the_snapshots_outlives_clean(self):
        self.snapshot()
        moved = self.in_run("snapshots", "other")
        shutil.move(self.other, moved)
        outcome = self.run_penstock("clean", self.run_folder, "--yes")
        self.assertEqual(outcome.code, 0, str(outcome))
        self.assertIn(moved, outcome.stdout)
        self.assert_other_is_whole(moved)
        self.assertEqual(os.listdir(self.in_run("snapshots")), ["other"])
        self.assertEqual(harness.states_in(self.nvme), [os.path.basename(self.other_state)])

    def test_another_run_that_linked_snapshots_lead_to_outlives_clean(self):
        outside = self.make_folder("outside")
        shutil.move(self.other, os.path.join(outside, "other"))
        os.symlink(outside, self.in_run("snapshots"))
        outcome = self.run_penstock("clean", self.run_folder, "--yes")
        self.assertEqual(outcome.code, 0, str(outcome))
        self.assert_other_is_whole(os.path.join(outside, "other"))

    def test_a_snapshot_of_another_run_outlives_clean(self):
        kept = self.snapshot(run=self.other)
        os.mkdir(self.in_run("snapshots"))
        moved = self.in_run("snapshots", "kept")
        shutil.move(kept, moved)
        self.assertEqual(self.run_penstock("clean", self.run_folder, "--yes").code, 0)
        outcome = harness.penstock("inspect", moved)
        self.assertEqual(outcome.code, 0, str(outcome))

    def test_a_run_knows_its_snapshots_after_its_state_was_moved(self):
        self.snapshot("before")
        moved = make_config(dtype="bf16", param="nvme", optimizer="nvme", nvme_path=self.nvme,
                            penstock={"tile_elements": 8192})
        outcome, _ = self.train(moved, "--resume", steps=3, out=self.run_folder)
        self.assertEqual(outcome.code, 0, str(outcome))
        outcome, _ = self.train(self.conf, "--resume-from", "before", steps=4, out=self.run_folder)
        self.assertEqual(outcome.code, 0, str(outcome))
        self.snapshot("after")
        self.assertEqual(self.run_penstock("clean", self.run_folder, "--yes").code, 0)
        self.assertFalse(os.path.exists(self.run_folder))
        self.assertEqual(harness.states_in(self.nvme), [os.path.basename(self.other_state)])

    def test_a_run_of_before_the_run_uuid_goes_with_its_snapshots(self):
        for folder in (self.snapshot(), self.run_folder):
            path = os.path.join(folder, "run.json")
            with open(path, encoding="utf-8") as file:
                info = json.load(file)
            older = harness.older_info(info)
            del older["run_uuid"]
            with open(path, "w", encoding="utf-8") as file:
                json.dump(older, file)
        self.assertEqual(self.run_penstock("clean", self.run_folder, "--yes").code, 0)
        self.assertFalse(os.path.exists(self.run_folder))
        self.assertEqual(harness.states_in(self.nvme), [os.path.basename(self.other_state)])


class RunJsonTest(HostileFolderTest):
    def edit(self, change):
        with open(self.in_run("run.json"), encoding="utf-8") as file:
            info = json.load(file)
        change(info)
        self.write(os.path.join(os.path.basename(self.run_folder), "run.json"), info)

    def assert_cleaned(self):
        outcome = self.run_penstock("clean", self.run_folder, "--yes")
        self.assertEqual(outcome.code, 0, str(outcome))
        self.assertFalse(os.path.exists(self.run_folder))
        self.assertEqual(os.listdir(self.nvme), [])

    def test_a_path_that_it_names_twice_is_removed_once(self):
        self.edit(lambda info: paths_in(info).append(
            os.path.join(self.nvme, ".", os.path.basename(paths_in(info)[0]))))
        for command in ("resume", "export", "inspect"):
            outcome = self.run_penstock(*self.commands()[command])
            self.assertEqual(outcome.code, 3, str(outcome))
            self.assertNotIn("in use", str(outcome))
        self.assert_cleaned()

    def test_a_state_over_two_drives_of_which_one_is_named_twice_is_not_in_use(self):
        self.assert_cleaned()
        drives = [self.make_folder("drive0"), self.make_folder("drive1")]
        self.conf = make_config(dtype="bf16", param="nvme", optimizer="nvme", nvme_path=drives)
        self.run_folder = self.trained(self.conf, steps=2)
        self.edit(lambda info: paths_in(info).__setitem__(1, paths_in(info)[0]))
        for command in ("resume", "export", "inspect"):
            outcome = self.run_penstock(*self.commands()[command])
            self.assertEqual(outcome.code, 3, str(outcome))
            self.assertIn("twice", outcome.errors[0])
        self.assertEqual(self.run_penstock("clean", self.run_folder, "--yes").code, 0)
        self.assertEqual([len(harness.states_in(drive)) for drive in drives], [0, 1])

    def test_its_own_state_among_the_leftovers_is_no_leftover(self):
        def add_own(info):
            info["leftovers"] = [info["state"]]

        self.edit(add_own)
        outcome = self.run_penstock(*self.train_arguments("--resume"))
        self.assertEqual(outcome.code, 0, str(outcome))
        self.assertNotIn("in use", outcome.stderr)
        self.edit(add_own)
        self.assert_cleaned()

    def test_a_path_that_is_empty_or_no_file_is_damage(self):
        state = harness.state_path(self.run_folder)
        for path in ("", "/", "."):
            with self.subTest(path=path):
                self.edit(lambda info: info["state"]["ranks"][0].update(paths=[path]))
                for command, arguments in self.commands().items():
                    if command == "resume-from":
                        continue
                    self.assert_one_line(self.run_penstock(*arguments), 3)
                self.assertIn("run.json", self.run_penstock("clean", self.run_folder).stderr)
        self.assertTrue(os.path.exists(state))

    def test_a_name_of_rows_that_leads_out_of_the_snapshots_is_damage(self):
        self.edit(lambda info: info.update(rows_from="../.."))
        self.assert_fails(self.run_penstock(*self.train_arguments("--resume")), 3, "run.json")


class CleanTest(HostileFolderTest):
    def assert_stays(self, folder, kept):
        own = os.path.join(folder, "kept")
        before = {path: text for path, text in self.contents(folder).items()
                  if not path.startswith(own)}
        outcome = self.run_penstock("clean", self.run_folder, "--yes")
        self.assertEqual(outcome.code, 0, str(outcome))
        self.assertIn(f"kept  {kept}, ", outcome.stdout)
        self.assertEqual(self.contents(folder), before)
        self.assertEqual(os.listdir(self.run_folder), ["snapshots"])
        self.assertEqual(os.listdir(self.nvme), [])

    def test_a_run_json_of_another_tool_below_the_snapshots_stays_and_the_run_goes(self):
        self.snapshot()
        for number, text in enumerate(("{}", "[1]", "not JSON", "", '{"version": 7}')):
            self.write(os.path.join(self.run_folder, "snapshots", f"x{number}", "run.json"), text)
        outcome = self.run_penstock("snapshots", self.run_folder)
        self.assertEqual(outcome.code, 0, str(outcome))
        self.assertRegex(outcome.stdout, "kept +step 2")
        self.assert_stays(self.in_run("snapshots"), self.in_run("snapshots", "x0"))

    def test_a_link_or_a_pipe_called_run_json_below_the_snapshots_stays_and_the_run_goes(self):
        for name in ("link", "pipe"):
            os.makedirs(self.in_run("snapshots", name))
        os.symlink(self.write("mine.txt", "mine"), self.in_run("snapshots", "link", "run.json"))
        os.mkfifo(self.in_run("snapshots", "pipe", "run.json"))
        self.assert_stays(self.in_run("snapshots"), self.in_run("snapshots", "pipe"))

    def test_a_damaged_run_json_of_the_runs_own_snapshot_is_refused(self):
        info = os.path.join(self.snapshot(), "run.json")
        with open(info, "r+b") as file:
            file.write(b"x")
        before = self.contents(self.folder)
        self.assert_fails(self.run_penstock("clean", self.run_folder, "--yes"), 3, info)
        self.assertEqual(self.contents(self.folder), before)


class GoneTest(HostileFolderTest):
    """What happens to RUN under a running training."""

    def setUp(self):
        super().setUp()
        shutil.rmtree(self.run_folder)
        self.conf = harness.merge(self.conf, {"penstock": {"commit_every_steps": 5}})

    def start(self, run):
        program = self.running(*self.train_arguments(run=run, steps=1000000),
                               stderr=subprocess.PIPE)
        self.wait_for_rows(run, 7, program)
        return program

    def assert_ends(self, program, *fragments):
        _, stderr = program.communicate(timeout=harness.TIMEOUT_S)
        outcome = harness.Outcome(["train"], program.returncode, "", stderr)
        self.assertEqual(outcome.code, 3, str(outcome))
        self.assertEqual(len(outcome.errors), 1, str(outcome))
        for fragment in fragments:
            self.assertIn(fragment, outcome.errors[0])

    def test_a_run_that_is_removed_ends_and_says_what_is_committed_where(self):
        run = self.path("gone")
        program = self.start(run)
        state = harness.state_path(run)
        shutil.rmtree(run)
        self.assert_ends(program, run, "removed", "is committed in " + state)
        self.assertFalse(os.path.exists(run))

    def test_a_run_that_is_removed_with_its_state_does_not_say_that_it_is_committed(self):
        self.conf = make_config(dtype="bf16", param="cpu", optimizer="cpu",
                                penstock={"commit_every_steps": 5})
        run = self.path("gone")
        program = self.start(run)
        state = harness.state_path(run)
        shutil.rmtree(run)
        _, stderr = program.communicate(timeout=harness.TIMEOUT_S)
        self.assertEqual(program.returncode, 3, stderr)
        self.assertNotIn("is committed in " + state, stderr)
        self.assertFalse(os.path.exists(run))

    def test_nothing_is_written_into_a_folder_that_takes_its_place(self):
        run = self.path("replaced")
        program = self.start(run)
        state = harness.state_path(run)
        os.rename(run, run + ".old")
        os.mkdir(run)
        self.assert_ends(program, run, "replaced", "is committed in " + state)
        self.assertEqual(os.listdir(run), [])
        self.assertEqual(harness.penstock("inspect", run + ".old").code, 0)

    def test_a_file_of_the_run_that_is_removed_or_replaced_is_named(self):
        for name in ("run.json", "metrics.jsonl"):
            for replace in (False, True):
                with self.subTest(name=name, replace=replace):
                    run = self.path(f"{name}-{replace}")
                    program = self.start(run)
                    path = os.path.join(run, name)
                    shutil.copy(path, path + ".copy")
                    if replace:
                        os.rename(path + ".copy", path)
                    else:
                        os.unlink(path)
                    self.assert_ends(program, path, "is committed in ")

    def test_a_run_whose_path_cannot_be_checked_continues_and_says_so(self):
        drive, aside = self.make_folder("drive"), self.path("aside")
        run = os.path.join(drive, "run")
        program = self.start(run)
        os.rename(drive, aside)
        os.symlink(drive, drive)  # ELOOP, as a drive that is gone for a while fails otherwise
        self.wait_for_rows(os.path.join(aside, "run"),
                           len(harness.read_rows(os.path.join(aside, "run"))) + 15, program)
        os.unlink(drive)
        os.rename(aside, drive)
        program.send_signal(signal.SIGTERM)
        _, stderr = program.communicate(timeout=harness.TIMEOUT_S)
        self.assertEqual(program.returncode, 130, stderr)
        self.assertIn(f"cannot check whether {run} is intact", stderr)

    def test_a_new_run_that_fails_leaves_nothing(self):
        run = self.path("failing")
        outcome = self.run_penstock(
            *self.train_arguments("--trace", self.path("no-folder/trace"), run=run))
        self.assertEqual(outcome.code, 3, str(outcome))
        self.assertFalse(os.path.exists(run))


if __name__ == "__main__":
    harness.main()
