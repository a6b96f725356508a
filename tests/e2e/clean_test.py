"""`penstock clean`: a run goes with its state, and nothing else does."""
import fcntl
import os
import shutil

import harness
from harness import make_config


class CleanTest(harness.PenstockTest):
    def setUp(self):
        super().setUp()
        self.nvme = self.make_folder("nvme")
        self.config = make_config(param="nvme", optimizer="nvme", nvme_path=self.nvme)
        self.run_folder = self.trained(self.config, steps=1)
        self.state = harness.state_path(self.run_folder)

    def clean(self, *more):
        outcome = harness.penstock("clean", self.run_folder, *more)
        self.assertEqual(outcome.code, 0, str(outcome))
        self.assertEqual(outcome.stderr, "")
        return outcome.stdout

    def everything(self):
        return sorted(os.path.join(root, name) for root, _, names in os.walk(self.folder)
                      for name in names)

    def assert_refused(self, *fragments):
        before = self.everything()
        for more in ([], ["--yes"]):
            self.assert_fails(harness.penstock("clean", self.run_folder, *more), 3, *fragments)
        self.assertEqual(self.everything(), before)

    def test_without_yes_it_lists_everything_and_removes_nothing(self):
        before = self.everything()
        text = self.clean()
        for name in ("metrics.jsonl", "summary.json", "run.json"):
            self.assertIn(os.path.join(self.run_folder, name), text)
        self.assertIn(self.state, text)
        self.assertIn("--yes", text)
        self.assertEqual(self.everything(), before)

    def test_with_yes_the_run_is_gone_and_its_neighbour_is_whole(self):
        other = self.trained(self.config, steps=1)
        self.clean("--yes")
        self.assertFalse(os.path.exists(self.run_folder))
        self.assertEqual(harness.states_in(self.nvme), [os.path.basename(harness.state_path(other))])
        self.assertEqual(harness.penstock("inspect", other).code, 0)

    def test_a_state_over_two_drives_goes_from_both(self):
        drives = [self.make_folder("drive0"), self.make_folder("drive1")]
        self.run_folder = self.trained(make_config(param="nvme", optimizer="nvme",
                                                   nvme_path=drives), steps=1)
        self.assertEqual([len(harness.states_in(drive)) for drive in drives], [1, 1])
        self.clean("--yes")
        self.assertEqual([os.listdir(drive) for drive in drives], [[], []])
        self.assertFalse(os.path.exists(self.run_folder))

    def test_hidden_files_and_links_below_snapshots_stay(self):
        other = self.trained(self.config, steps=1)
        self.assertEqual(harness.penstock("snapshot", self.run_folder, "kept").code, 0)
        snapshots = os.path.join(self.run_folder, "snapshots")
        os.symlink(other, os.path.join(snapshots, "old"))
        with open(os.path.join(snapshots, ".mine"), "w", encoding="utf-8") as file:
            file.write("mine")
        text = self.clean("--yes")
        self.assertIn(os.path.join(snapshots, ".mine"), text)
        self.assertIn(os.path.join(snapshots, "old"), text)
        self.assertEqual(sorted(os.listdir(snapshots)), [".mine", "old"])
        self.assertEqual(harness.penstock("inspect", other).code, 0)

    def test_a_state_in_the_folder_goes_too(self):
        self.run_folder = self.trained(make_config(param="cpu", optimizer="cpu"), steps=1)
        self.assertIn(".state", self.clean())
        self.clean("--yes")
        self.assertFalse(os.path.exists(self.run_folder))

    def test_what_others_put_into_the_folder_stays_and_is_named(self):
        notes = self.write(f"{os.path.basename(self.run_folder)}/notes.txt", "mine")
        left = self.write(f"{os.path.basename(self.run_folder)}/summary.json.tmp-17", "")
        self.assertIn(notes, self.clean())
        self.assertIn(left, self.clean())
        self.clean("--yes")
        self.assertEqual(os.listdir(self.run_folder), ["notes.txt"])
        self.assertEqual(os.listdir(self.nvme), [])

    def test_what_others_put_below_the_snapshots_stays_and_is_named(self):
        self.assertEqual(harness.penstock("snapshot", self.run_folder, "kept").code, 0)
        run = os.path.basename(self.run_folder)
        foreign = [self.write(f"{run}/snapshots/{name}", "mine")
                   for name in ("kept/hf/config.json", "notes.txt", "mine/metrics.jsonl")]
        for text in (self.clean(), self.clean("--yes")):
            for name in ("kept/hf", "notes.txt", "mine"):
                self.assertRegex(text, rf"(stays|kept)  {self.run_folder}/snapshots/{name},")
            self.assertRegex(text, rf"(stays|kept)  {self.run_folder}, ")
        left = [path for path in self.everything() if path.startswith(self.run_folder + "/")]
        self.assertEqual(left, sorted(foreign))
        self.assertEqual(os.listdir(self.nvme), [])

    def test_a_state_in_use_is_refused(self):
        for lock in (fcntl.LOCK_EX, fcntl.LOCK_SH):
            with open(self.state, "rb") as file:
                fcntl.flock(file, lock)
                self.assert_refused("in use", self.state)

    def test_a_state_of_another_run_in_its_place_is_refused(self):
        other = harness.state_path(self.trained(self.config, steps=1))
        shutil.move(other, self.state)
        self.assert_refused(self.state, "belongs to the state")

    def damage(self, offset):
        with open(self.state, "r+b") as file:
            file.seek(offset)
            file.write(b"\xff")

    def test_a_state_whose_headers_are_both_damaged_is_refused(self):
        self.damage(20)
        self.damage(os.path.getsize(self.state) - 4096 + 20)
        self.assert_refused(self.state, "by hand")

    def test_a_state_whose_first_header_is_damaged_is_known_by_its_second(self):
        self.damage(20)
        self.clean("--yes")
        self.assertFalse(os.path.exists(self.state))

    def test_a_state_that_is_gone_is_named_and_the_rest_is_removed(self):
        os.unlink(self.state)
        self.assertRegex(self.clean(), rf"not there +{self.state}\n")
        self.clean("--yes")
        self.assertFalse(os.path.exists(self.run_folder))

    def test_an_empty_folder_is_what_a_removal_cut_off_at_its_end_leaves_and_goes(self):
        self.run_folder = self.make_folder("empty")
        self.clean()
        self.assertEqual(os.listdir(self.run_folder), [])
        self.clean("--yes")
        self.assertFalse(os.path.exists(self.run_folder))

    def test_what_is_left_of_a_snapshot_goes_with_the_run(self):
        run = self.trained(make_config(), steps=2)
        for name in ("kept", ".other.unfinished"):
            self.make_folder(os.path.join(os.path.basename(run), "snapshots", name))
            self.write(f"{os.path.basename(run)}/snapshots/{name}/run.lock", "")
        self.assertEqual(harness.penstock("clean", run, "--yes").code, 0)
        self.assertFalse(os.path.exists(run))

    def test_what_a_run_leaves_that_ended_before_it_had_a_run_json_stands_in_no_way(self):
        before = os.listdir(self.folder)
        for number, left in enumerate((["run.lock"], ["run.json.tmp-4711"], ["run.json.tmp-1", "run.json.tmp-2"])):
            run = self.make_folder(f"left{number}")
            for name in left:
                self.write(f"left{number}/{name}", '{"version": 1')
            resumed, _ = self.train(make_config(), "--resume", steps=2, out=run)
            self.assert_fails(resumed, 2, f"there is no commit in {run}", "penstock clean")
            cleaned = harness.penstock("clean", run)
            self.assertEqual(cleaned.code, 0, str(cleaned))
            for name in left:
                self.assertIn(os.path.join(run, name), cleaned.stdout)
            self.assertEqual(set(os.listdir(run)), set(left))
            self.trained(make_config(), steps=2, out=run)
            self.assertEqual([name for name in os.listdir(run) if ".tmp-" in name], [])
            self.assertEqual(harness.penstock("clean", run, "--yes").code, 0)
            for name in left:
                self.write(f"left{number}/{name}", "")
            if left:
                self.assert_fails(harness.penstock("inspect", run), 3, "ended before it had begun")
                self.assertEqual(harness.penstock("clean", run, "--yes").code, 0)
            self.assertFalse(os.path.exists(run))
        self.assertLessEqual(set(before), set(os.listdir(self.folder)))

    def test_what_somebody_else_has_beside_it_stays(self):
        run = self.make_folder("left")
        self.write("left/run.json.tmp-4711", "")
        self.write("left/mine", "x")
        outcome, _ = self.train(make_config(), steps=2, out=run)
        self.assert_fails(outcome, 2, "it exists already")
        self.assert_fails(harness.penstock("clean", run, "--yes"), 3, "not the folder of a run")
        self.assertEqual(sorted(os.listdir(run)), ["mine", "run.json.tmp-4711"])

    def test_a_folder_that_is_no_run_is_refused(self):
        folder = self.make_folder("folder")
        self.write("folder/metrics.jsonl", "mine")
        for path in (folder, self.path("nowhere")):
            self.assert_fails(harness.penstock("clean", path, "--yes"), 3, path, "not the folder")
        self.assertEqual(os.listdir(folder), ["metrics.jsonl"])

    def test_what_is_no_run_is_not_to_be_resumed_or_deleted(self):
        mine, empty = self.make_folder("mine"), self.make_folder("none")
        self.write("mine/thesis.tex", "text")
        for out in (mine, empty):
            for more in ([], ["--resume"], ["--resume-from", "kept"]):
                refused, _ = self.train(make_config(), *more, steps=2, out=out)
                self.assert_fails(refused, 2, out)
                if out == mine or more:
                    self.assertNotIn("remove", refused.errors[0])
        started, _ = self.train(make_config(), steps=2, out=empty)
        self.assertIn("remove it (rmdir)", started.errors[0])
        os.rmdir(empty)
        self.trained(make_config(), steps=2, out=empty)


if __name__ == "__main__":
    harness.main()
