"""Every command on runs of the package, as its library makes them (tests/e2e/package_training.py)."""
import json
import os
import shutil

import harness
from harness import make_config
from package_harness import PackageTest

class CommandsTest(PackageTest):
    def test_each_command_works_on_runs_of_both_levels_in_all_places(self):
        runs = [(kind, nvme, self.run_in(f"{kind}-{nvme}", kind, nvme, snapshots=["kept"]))
                for kind in ("optimizer", "module") for nvme in (False, True)]
        runs.append(("optimizer", True, self.package(nvme_path=[self.nvme])))  # temporary
        silent = self.run_in("silent", losses=False)
        self.assertIn("without rows: its steps report no loss", self.says("numerics", silent))
        self.assertIn("without rows: its steps report no loss",
                      harness.penstock("doctor", silent).stdout)
        for kind, nvme, run in runs:
            with self.subTest(run):
                kept = 1 if os.path.isdir(os.path.join(run, "snapshots")) else 0
                said = self.says("inspect", run)
                self.assertIn(f"the Python package ({kind})", said)
                self.assertIn("all verified", said)
                self.assertIn("of step 2: whole; run= resumes from it", said)
                self.assertNotIn("--resume", said)
                self.assertIn("equal bits", self.says("compare", run, run))
                self.assertEqual(self.says("numerics", run), f"{run}: 2 steps (0 skipped), 0 reports\n")
                self.says("numerics", run, "--plot", run + ".svg")
                self.assertIn("as reported", self.path_text(run + ".svg"))
                self.assertRegex(harness.penstock("doctor", run).stdout,
                                 rf"the Python package \({kind}\), 2 steps up to 2, [0-9.e-]+ s each")
                self.says("export", run, "--to", run + "-out")
                tensors = harness.read_safetensors(run + "-out/model.safetensors")
                self.assertEqual(sorted(tensors), ["decoder.bias", "decoder.weight", "encoder.bias",
                                                   "encoder.weight"])
                self.assertIn("equal bits", self.says("compare", run, run + "-out"))
                said = self.says("snapshot", run, "mine")
                self.assertIn("step 2", said)
                self.assertIn('["penstock"]["snapshot"]', said)
                listed = self.says("snapshots", run).splitlines()
                self.assertEqual(len(listed), kept + 1)
                self.assertIn("equal bits", self.says("compare", run, run + "/snapshots/mine"))
                self.assertNotIn("temporary", harness.read_info(run + "/snapshots/mine"))
                self.assertIn("2 steps", self.says("numerics", run + "/snapshots/mine"))

    def test_numerics_and_doctor_say_how_a_run_ended_by_its_numbers(self):
        run = self.run_in("run", end="not finite")
        said = self.says("numerics", run)
        self.assertIn(f"{run}: 4 steps (2 skipped), 2 reports\nended at step 4: ", said)
        self.assertIn("first cause: step 3: the loss is nan", said)
        doctor = harness.penstock("doctor", run).stdout
        self.assertIn("penstock numerics " + run + " says why", doctor)

    def test_the_callers_file_of_a_commit_is_named_verified_copied_and_removed(self):
        for nvme in (False, True):
            run = self.run_in(f"callers-{nvme}", nvme=nvme, caller=100000, snapshots=["kept"])
            folder = self.nvme if nvme else run
            files = sorted(path for path in self.everything(folder) if ".caller-" in path)
            self.assertEqual(len(files), 3, files)
            said = self.says("inspect", run)
            [line] = [line for line in said.splitlines() if line.startswith("caller's file")]
            [newest] = [path for path in files if path in line]
            self.assertTrue(newest.endswith(".caller-0"), newest)
            self.assertIn("(97.7 KiB)", line)
            self.assertIn("all verified", said)
            self.says("snapshot", run, "mine")
            self.assertIn("caller's file", self.says("inspect", run + "/snapshots/mine"))
            self.assertEqual(sum(".caller-" in path for path in self.everything(folder)), 4)
            self.says("clean", run + "/snapshots/mine", "--yes")
            self.assertEqual(sorted(p for p in self.everything(folder) if ".caller-" in p), files)
            whole = self.everything(run, self.nvme)
            with open(newest, "r+b") as file:
                file.seek(50000)
                file.write(b"\0")
            outcome = harness.penstock("inspect", run)
            self.assertEqual(outcome.code, 3)
            [damaged] = [line for line in outcome.stdout.splitlines() if line.startswith("damaged")]
            self.assertIn(newest, damaged)
            self.assertIn("of step 1: whole; run= resumes from it", outcome.stdout)
            listed = self.says("clean", run)
            for path in whole:
                self.assertIn(path, listed)
            said = self.says("clean", run, "--yes")
            self.assertNotIn("not the run's", said)
            self.assertEqual(self.everything(run, self.nvme), {})
            self.assertFalse(os.path.exists(run))

    def test_clean_removes_the_callers_files_of_a_state_that_is_gone(self):
        for nvme in (False, True):
            run = self.run_in(f"gone-{nvme}", nvme=nvme, caller=100000)
            files = self.everything(run, self.nvme)
            [state] = [path for path in files if path.endswith(".state")]
            os.remove(state)
            said = self.says("clean", run)
            for path in files:
                self.assertIn(path, said)
            said = self.says("clean", run, "--yes")
            self.assertNotIn("not the run's", said)
            self.assertEqual(self.everything(run, self.nvme), {})
            self.assertFalse(os.path.exists(run))

    def test_what_needs_the_training_is_refused_with_the_reason_and_changes_nothing(self):
        for kind in ("optimizer", "module"):
            run = self.run_in(kind, kind)
            train = ["train", "--model", self.make_model(), "--data", self.make_data(), "--config",
                     self.write("config.json", make_config()), "--out", run, "--steps", "9",
                     "--device-memory", "1GiB"]
            before = self.everything(run, self.nvme)
            for words, says in (
                    ((*train,), f'its own program resumes it, with run="{run}"'),
                    ((*train, "--resume"), f'its own program resumes it, with run="{run}"'),
                    ((*train, "--resume", "--change", "optimizer.params.lr=0.1"),
                     "optimizer.params.lr and all other numbers of its steps are that program's"),
                    (("replay", run, "--from", "1", "--to", "2"),
                     "its model and data are that program's")):
                with self.subTest(words[-1]):
                    line = self.one_line(*words)
                    self.assertIn(f"a run of the Python package ({kind})", line)
                    self.assertIn(says, line)
                    self.assertEqual(self.everything(run, self.nvme), before)

    def test_clean_removes_what_is_the_runs_and_nothing_else(self):
        others = self.run_in("other")
        before = self.everything(others, self.nvme)
        for kind, nvme in (("optimizer", False), ("module", True)):
            run = self.run_in("run", kind, nvme, snapshots=["kept"])
            planned = self.says("clean", run)
            self.assertIn("nothing is removed without --yes", planned)
            self.assertEqual(self.step_of(run), 2)
            self.says("clean", run, "--yes")
            self.assertFalse(os.path.exists(run))
            self.assertEqual(self.everything(others, self.nvme), before)
        temporary = self.package(nvme_path=[self.nvme])
        self.says("clean", temporary, "--yes")
        self.assertFalse(os.path.exists(temporary))
        self.assertEqual(self.everything(others, self.nvme), before)
        self.assertEqual(os.listdir(self.nvme), [os.path.basename(path) for path in before
                                                 if path.startswith(self.nvme)])

    def test_clean_of_a_run_with_a_file_of_the_users_keeps_it(self):
        run = self.run_in("run", nvme=False)
        self.write("run/mine.txt", "mine")
        self.assertIn("mine.txt, which is not the run's", self.says("clean", run, "--yes"))
        self.assertEqual(os.listdir(run), ["mine.txt"])

    def test_a_run_that_a_process_holds_is_refused_as_in_use_and_stays(self):
        for kind in ("optimizer", "module"):
            run = self.held(run=self.path(kind), nvme_path=[self.nvme], kind=kind, snapshots=["kept"])
            before = self.everything(run, self.nvme)
            outcome = harness.penstock("inspect", run)  # which lists the files all the same
            self.assertEqual(outcome.code, 3, str(outcome))
            self.assertIn("in use", outcome.stderr)
            self.assertIn("2 steps", self.says("numerics", run))
            self.assertIn("step 2", self.says("snapshots", run))
            self.assertEqual(self.step_of(run + "/snapshots/kept"), 2)
            self.assertIn("in use", self.one_line("clean", run, "--yes", code=3))
            self.assertEqual(self.everything(run, self.nvme), before)


class CommitsTest(PackageTest):
    def test_a_run_without_a_commit_says_so_and_clean_removes_it(self):
        for nvme in (False, True):
            run = self.run_in("run", nvme=nvme, steps=0, end="uncommitted")
            for words in (("inspect", run), ("compare", run, run), ("snapshot", run, "mine"),
                          ("export", run, "--to", self.path("out"))):
                self.assertIn("has no commit yet", self.one_line(*words, code=3))
            self.assertEqual(self.says("snapshots", run), "no snapshots\n")
            self.says("clean", run, "--yes")
            self.assertEqual((os.path.exists(run), os.listdir(self.nvme)), (False, []))

    def test_a_first_commit_that_a_kill_left_unnamed_counts_for_every_command(self):
        for nvme in (False, True):
            run = self.run_in(f"run-{nvme}", nvme=nvme, steps=0, end="unnamed")
            self.assertIsNone(harness.read_info(run)["state"])
            before = self.everything(run, self.nvme)
            self.assertEqual(self.step_of(run), 1)
            self.assertNotIn("left over", self.says("inspect", run))
            self.assertIn("equal bits", self.says("compare", run, run))
            self.assertIn("step 1", self.says("export", run, "--to", run + "-out"))
            self.assertEqual(self.everything(run, self.nvme), before)
            self.assertIn("step 1", self.says("snapshot", run, "mine"))
            self.run_in(f"run-{nvme}", nvme=nvme, steps=1)
            self.assertEqual(self.step_of(run), 2)
            self.says("clean", run, "--yes")
            self.assertEqual((os.path.exists(run), os.listdir(self.nvme)), (False, []))

    def test_a_temporary_run_with_an_unnamed_commit_is_not_removed_by_the_next_one(self):
        killed = self.package(nvme_path=[self.nvme], steps=0, end="unnamed")
        nothing = self.package(nvme_path=[self.nvme], steps=0, end="uncommitted")
        self.package(nvme_path=[self.nvme])
        self.assertEqual(self.step_of(killed), 1)
        self.assertFalse(os.path.exists(nothing))


class PlacesTest(PackageTest):
    def test_a_run_that_was_moved_is_the_same_one(self):
        for nvme in (False, True):
            self.run_in("first", nvme=nvme, snapshots=["kept"])
            moved = self.path(f"moved-{nvme}")
            shutil.move(self.path("first"), moved)
            self.assertEqual(self.step_of(moved), 2)
            self.assertIn("step 2", self.says("export", moved, "--to", moved + "-out"))
            self.assertIn("step 2", self.says("snapshot", moved, "mine"))
            self.run_in(f"moved-{nvme}", nvme=nvme)
            self.assertEqual(self.step_of(moved), 4)
            shutil.move(moved, self.path("again"))
            if nvme:
                self.assertIn(f"was last trained at {moved}",
                              self.one_line("clean", self.path("again"), "--yes"))
                self.run_in("again")
            self.says("clean", self.path("again"), "--yes")
            self.assertEqual((os.path.exists(self.path("again")), os.listdir(self.nvme)), (False, []))

    def test_a_copied_run_takes_nothing_from_its_original(self):
        for nvme in (False, True):
            run = self.run_in(f"run-{nvme}", nvme=nvme)
            before = self.everything(run, self.nvme)
            copied = shutil.copytree(run, self.path("copied"))
            self.assertEqual(self.step_of(copied), 2)
            self.assertIn(f"is a copy of {run}", self.one_line("snapshot", copied, "mine"))
            self.says("clean", copied, "--yes")
            self.assertFalse(os.path.exists(copied))
            self.assertEqual(self.everything(run, self.nvme), before)

    def test_a_run_and_its_copy_by_hard_links_train_in_files_of_their_own(self):
        for kind in ("optimizer", "module"):
            run = self.run_in(f"run-{kind}", kind, nvme=False)
            copied = shutil.copytree(run, self.path(f"linked-{kind}"), copy_function=os.link)
            self.run_in(f"linked-{kind}", kind, nvme=False)
            self.assertEqual((self.step_of(run), self.step_of(copied)), (2, 4))
            self.run_in(f"run-{kind}", kind, nvme=False)
            for folder in (run, copied):
                states = [name for name in os.listdir(folder) if name.endswith(".state")]
                self.assertEqual((self.step_of(folder), len(states)), (4, 1))

    def test_a_copy_whose_original_was_moved_and_trained_takes_nothing_from_it(self):
        for kind in ("optimizer", "module"):
            run, moved = self.run_in(f"run-{kind}", kind), self.path(f"moved-{kind}")
            copied = shutil.copytree(run, self.path(f"copied-{kind}"))
            cleaned = shutil.copytree(run, self.path(f"cleaned-{kind}"))
            shutil.move(run, moved)
            self.run_in(f"moved-{kind}", kind)
            before = self.everything(moved)
            self.says("clean", cleaned, "--yes")
            self.run_in(f"copied-{kind}", kind)
            self.assertEqual((self.everything(moved), self.step_of(moved)), (before, 4))
            self.assertNotEqual(harness.state_path(copied), harness.state_path(moved))

    def test_what_a_kill_left_of_a_snapshot_goes_when_the_run_is_resumed(self):
        for nvme in (False, True):
            run = self.run_in(f"run-{nvme}", nvme=nvme, snapshots=["kept", "other"])
            os.rename(f"{run}/snapshots/kept", f"{run}/snapshots/.kept.unfinished")
            self.run_in(f"run-{nvme}", nvme=nvme)
            left = self.everything(run, self.nvme)
            self.assertEqual([name for name in left if "kept" in name], [])
            self.assertEqual(self.step_of(f"{run}/snapshots/other"), 2)

    def test_clean_removes_what_a_kill_left_of_a_snapshot_to_a_path(self):
        for nvme in (False, True):
            kept, left = self.path("kept/first"), self.path("kept/.first.unfinished")
            run = self.run_in(f"run-{nvme}", nvme=nvme, snapshots=[kept])
            os.rename(kept, left)
            self.write(f"run-{nvme}/run.json", {**harness.read_info(run), "copying": kept})
            copied = shutil.copytree(run, self.path(f"copied-{nvme}"))
            self.assertNotIn(left, self.says("clean", copied))
            self.assertIn(f"{left}/penstock-", self.says("clean", run))
            self.says("clean", run, "--yes")
            self.assertEqual((os.path.exists(run), os.listdir(self.path("kept"))), (False, []))

    def test_a_snapshot_to_the_root_is_refused_as_any_path_that_is_taken(self):
        for path in ("/", self.nvme):
            line = self.refused(run=self.path("run"), nvme_path=[self.nvme], snapshots=[path])
            self.assertIn(f"{path} is there already; name another snapshot", line)

    def test_where_the_drive_of_the_state_is_away_it_is_to_be_mounted(self):
        run = self.run_in("run")
        os.rename(self.nvme, self.path("away"))
        line = self.refused(run=run, nvme_path=[self.nvme])
        self.assertIn(f"the newest commit of {run} is in it: mount its drive", line)
        os.mkdir(self.nvme)
        self.assertIn("mount its drive", self.refused(run=run, nvme_path=[self.nvme]))
        self.assertEqual(os.listdir(self.nvme), [])
        os.rmdir(self.nvme)
        os.rename(self.path("away"), self.nvme)
        self.run_in("run")
        self.assertEqual(self.step_of(run), 4)

    def test_a_snapshot_is_read_and_removed_and_never_trained(self):
        run = self.run_in("run", snapshots=["kept"])
        kept = f"{run}/snapshots/kept"
        before = self.everything(run, self.nvme)
        self.assertEqual(self.step_of(kept), 2)
        self.assertIn("step 2", self.says("export", kept, "--to", self.path("out")))
        self.assertIn("is a snapshot already", self.one_line("snapshot", kept, "mine"))
        self.assertIn(f"is a snapshot of {run}, and stays as it is",
                      self.refused(run=kept, nvme_path=[self.nvme]))
        self.assertEqual(self.everything(run, self.nvme), before)
        self.says("clean", kept, "--yes")
        self.assertEqual((os.path.exists(kept), self.step_of(run)), (False, 2))
        self.assertEqual(len(harness.states_in(self.nvme)), 1)


class OthersTest(PackageTest):
    def test_the_package_refuses_what_is_no_run_of_it_and_leaves_it_as_it_is(self):
        conf = make_config(param="nvme", optimizer="nvme", nvme_path=self.nvme)
        trained = self.trained(conf, steps=2)
        self.says("snapshot", trained, "kept")
        newer = self.run_in("newer", nvme=False)
        info = harness.read_info(newer)
        self.write("newer/run.json", {**info, "version": 7})
        self.make_folder("state")
        shutil.copy(harness.state_path(trained), self.path("state"))
        self.write("file", "no folder")
        self.write("damaged/run.json", "{")
        for folder, says in (
                (trained, "is a run of penstock train, which resumes it with --resume"),
                (trained + "/snapshots/kept", f"is a snapshot of {trained}, a run of penstock train, "
                                              "which resumes from it with --resume-from kept"),
                (newer, "version 7 is not known"),
                (self.path("state"), "no run.json, so it is no run"),
                (self.path("damaged"), "damaged"),
                (self.path("file"), "file")):
            for kind in ("optimizer", "module"):
                with self.subTest(folder, kind=kind):
                    before = self.everything()
                    line = self.refused(run=folder, nvme_path=[self.nvme], kind=kind)
                    self.assertIn(says, line)
                    self.assertNotIn("json.exception", line)
                    self.assertEqual(self.everything(), before)

    def test_a_run_of_the_other_kind_is_refused_by_it(self):
        run = self.run_in("run", "module")
        before = self.everything(run, self.nvme)
        self.assertIn("is of kind module, and optimizer was asked for",
                      self.refused(run=run, nvme_path=[self.nvme]))
        self.assertEqual(self.everything(run, self.nvme), before)

    def test_a_folder_that_is_no_run_gets_no_file(self):
        self.write("folder/mine.txt", "mine")
        before = self.everything()
        folder = self.path("folder")
        for words in (("inspect", folder), ("clean", folder, "--yes"), ("snapshot", folder, "a"),
                      ("snapshots", folder), ("numerics", folder), ("doctor", folder),
                      ("replay", folder, "--from", "1", "--to", "2"),
                      ("export", folder, "--to", self.path("out"))):
            with self.subTest(words[0]):
                self.assertIn("is not the folder of a run", self.one_line(*words, code=3))
                self.assertEqual(self.everything(), before)


if __name__ == "__main__":
    harness.main()
