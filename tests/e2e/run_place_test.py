"""Where a run is, and in which version of run.json: moved, copied, lost, killed and older runs
(docs/run_format.md).
"""
import json
import os
import pathlib
import shutil

import harness
from harness import make_config, read_info, read_rows, state_path

STEPS = 6


def losses(run):
    return [row["loss"] for row in read_rows(run)]


class RunPlaceTest(harness.PenstockTest):
    def setUp(self):
        super().setUp()
        self.nvme = self.make_folder("nvme")
        self.conf = make_config(dtype="bf16", param="nvme", optimizer="nvme", nvme_path=self.nvme)

    def begun(self, **keywords):
        return self.trained(self.conf, steps=3, **keywords)

    def resumed(self, run, *more, steps=STEPS):
        outcome, _ = self.train(self.conf, *(more or ("--resume",)), steps=steps, out=run)
        self.assertEqual(outcome.code, 0, str(outcome))
        return outcome

    def whole(self):
        """The losses and the weights of a training that nothing happened to."""
        return self.trained(self.conf, steps=STEPS)

    def assert_as(self, run, whole):
        self.assertEqual(losses(run), losses(whole))
        self.assert_equal_bits(run, whole)

    def edit(self, run, change):
        info = read_info(run)
        change(info)
        self.write(os.path.join(run, "run.json"), info)

    def make_older(self, *folders):
        for folder in folders:
            self.write(os.path.join(folder, "run.json"), harness.older_info(read_info(folder)))

    def owner(self, run):
        """What the file beside a run's state says."""
        path = state_path(run).removesuffix(".state") + ".run"
        return json.loads(pathlib.Path(path).read_text(encoding="utf-8"))

    def copied(self, run):
        copy = self.path("copy")
        shutil.copytree(run, copy)
        return copy

    def assert_apart(self, run, copy):
        """Neither has anything of the other."""
        mine, its = read_info(run), read_info(copy)
        self.assertNotEqual(mine["run_uuid"], its["run_uuid"])
        self.assertNotEqual(mine["state"], its["state"])
        self.assertEqual([its["place"], its["leftovers"]], [copy, []])

    def clean(self, run):
        outcome = harness.penstock("clean", run, "--yes")
        self.assertEqual(outcome.code, 0, str(outcome))
        return outcome.stdout


class MovedTest(RunPlaceTest):
    def test_a_run_knows_its_place_and_its_state_names_it(self):
        run = self.begun()
        self.assertEqual(read_info(run)["place"], run)
        self.assertEqual(self.owner(run), run)

    def test_a_moved_run_resumes_in_its_files(self):
        run, whole = self.begun(), self.whole()
        before, moved = read_info(run), self.path("moved")
        os.rename(run, moved)
        self.resumed(moved)
        info = read_info(moved)
        self.assertEqual(info, {**before, "place": moved})
        self.assertEqual(self.owner(moved), moved)
        self.assert_as(moved, whole)
        self.clean(moved)
        self.clean(whole)
        self.assertEqual(os.listdir(self.nvme), [])

    def test_what_a_kill_left_of_the_file_that_names_the_run_goes_with_it(self):
        run = self.begun()
        left = state_path(run).removesuffix(".state") + ".run.tmp-4711"
        pathlib.Path(left).write_bytes(b"")
        self.clean(run)
        self.assertEqual(os.listdir(self.nvme), [])

    def test_a_file_that_names_another_run_stays(self):
        run = self.begun()
        owner = self.write(state_path(run).removesuffix(".state") + ".run", json.dumps("/other"))
        self.assert_fails(harness.penstock("clean", run, "--yes"), 2, "last trained at /other")
        self.assertEqual(len(os.listdir(self.nvme)), 2)
        os.unlink(state_path(run))
        self.clean(run)
        self.assertEqual(os.listdir(self.nvme), [os.path.basename(owner)])

    def test_a_snapshot_has_a_place_of_its_own(self):
        run = self.begun()
        self.assertEqual(harness.penstock("snapshot", os.path.relpath(run), "kept").code, 0)
        kept = os.path.join(run, "snapshots", "kept")
        self.assertEqual(read_info(kept)["place"], kept)
        self.assertEqual(read_info(kept)["run_uuid"], read_info(run)["run_uuid"])


class CopiedTest(RunPlaceTest):
    def test_a_copy_is_moved_into_files_of_its_own_and_the_original_is_as_it_was(self):
        run, whole = self.begun(), self.whole()
        copy, before = self.copied(run), pathlib.Path(state_path(run)).read_bytes()
        self.resumed(copy)
        self.assertEqual(pathlib.Path(state_path(run)).read_bytes(), before)
        self.assert_apart(run, copy)
        self.assert_as(copy, whole)
        self.clean(copy)
        self.resumed(run)
        self.assert_as(run, whole)

    def test_an_original_that_trains_and_is_cleaned_costs_its_copy_nothing(self):
        run, whole = self.begun(), self.whole()
        copy = self.copied(run)
        self.resumed(copy, steps=3)  # nothing is left to do but that
        self.assert_apart(run, copy)
        self.resumed(run)
        self.clean(run)
        self.resumed(copy)
        self.assert_as(copy, whole)

    def test_a_copy_with_its_state_in_the_folder_loses_no_file(self):
        self.conf = make_config(dtype="bf16")
        run, whole = self.begun(), self.whole()
        copy = self.copied(run)
        os.unlink(state_path(copy))
        os.link(state_path(run), state_path(copy))  # as "cp -l" has it
        self.resumed(copy)
        self.assert_apart(run, copy)
        self.assertEqual(len(list(pathlib.Path(copy).glob("*.state"))), 1)
        self.assert_as(copy, whole)
        self.resumed(run)
        self.assert_as(run, whole)

    def test_neither_of_a_run_and_a_copy_by_hard_links_writes_into_the_others_files(self):
        self.conf = make_config(dtype="bf16")
        whole = self.whole()
        for first in ("original", "copy"):
            run, copy = self.begun(), self.path(f"copy-{first}")
            shutil.copytree(run, copy, copy_function=os.link)
            one, other = (run, copy) if first == "original" else (copy, run)
            before = [pathlib.Path(name).read_bytes()
                      for name in (state_path(other), os.path.join(other, "metrics.jsonl"))]
            self.resumed(one)
            self.assertEqual([pathlib.Path(name).read_bytes() for name in (
                state_path(other), os.path.join(other, "metrics.jsonl"))], before)
            self.resumed(other)
            for folder in (run, copy):
                self.assert_as(folder, whole)
                self.assertEqual(len(list(pathlib.Path(folder).glob("*.state"))), 1)

    def test_a_hard_link_of_a_state_keeps_its_commit(self):
        run, whole = self.begun(), self.whole()
        kept = self.path("kept")
        os.link(state_path(run), kept)
        before = pathlib.Path(kept).read_bytes()
        outcome = self.resumed(run)
        self.assertIn("the state was moved to", outcome.stderr)
        self.assertEqual(pathlib.Path(kept).read_bytes(), before)
        self.assert_as(run, whole)
        self.assertEqual(read_info(run)["leftovers"], [])
        self.clean(run)
        self.assertEqual(len(harness.states_in(self.nvme)), 1)

    def test_a_copy_that_was_killed_while_it_was_moved_is_one_still(self):
        run, whole = self.begun(), self.whole()
        copy = self.copied(run)
        left = os.path.join(self.nvme, "penstock-" + "0" * 32 + ".state")
        pathlib.Path(left).write_bytes(b"")
        self.edit(copy, lambda info: info.update(run_uuid="f" * 32, leftovers=[
            {"uuid": "0" * 32, "ranks": [{"host": "", "paths": [left]}]}]))
        self.resumed(copy)
        self.assertEqual(read_info(copy)["run_uuid"], "f" * 32)
        self.assertFalse(os.path.exists(left))
        self.assert_apart(run, copy)
        self.resumed(run)
        self.assert_as(run, whole)

    def test_what_a_copy_left_over_is_the_originals(self):
        run = self.begun()
        other = self.begun()
        state = read_info(other)["state"]
        self.edit(run, lambda info: info.update(leftovers=[state]))
        copy = self.copied(run)
        self.resumed(copy)
        self.assertTrue(os.path.exists(state_path(other)))

    def test_clean_and_snapshot_of_a_copy_that_has_no_state_yet_leave_the_original_whole(self):
        run = self.begun()
        self.assertEqual(harness.penstock("snapshot", run, "kept").code, 0)
        copy = self.copied(run)
        self.assert_fails(harness.penstock("snapshot", copy, "more"), 2, f"is a copy of {run}")
        text = self.clean(copy)
        self.assertIn(f"{state_path(run)}, which is the original's", text)
        self.assertFalse(os.path.exists(copy))
        for of in (run, os.path.join(run, "snapshots", "kept")):
            self.assertEqual(harness.penstock("inspect", of).code, 0)
        self.resumed(run, "--resume-from", "kept")


class MovedOriginalTest(RunPlaceTest):
    """A copy whose original was moved, so that nothing is where both say they were."""

    def apart(self):
        run, moved = self.begun(), self.path("moved")
        copy = self.copied(run)
        os.rename(run, moved)
        return run, copy, moved

    def test_clean_of_either_is_refused_until_one_was_resumed_and_then_leaves_its_state(self):
        whole = self.whole()
        run, copy, moved = self.apart()
        for folder in (copy, moved):
            self.assert_fails(harness.penstock("clean", folder, "--yes"), 2,
                              f"{folder} was last trained at {run}", state_path(moved))
        self.resumed(moved)
        self.assertIn("which is the original's", self.clean(copy))
        self.assertFalse(os.path.exists(copy))
        self.assert_as(moved, whole)
        self.clean(moved)
        self.clean(whole)
        self.assertEqual(os.listdir(self.nvme), [])

    def test_clean_of_a_copied_snapshot_leaves_the_originals_state(self):
        run = self.begun()
        self.assertEqual(harness.penstock("snapshot", run, "kept").code, 0)
        copy, moved = self.copied(run), self.path("moved")
        os.rename(run, moved)
        kept = os.path.join(copy, "snapshots", "kept")
        self.assert_fails(harness.penstock("clean", kept, "--yes"), 2, "was last trained at")
        self.resumed(moved)
        self.assert_fails(harness.penstock("clean", kept, "--yes"), 2, "was last trained at")
        self.clean(os.path.join(moved, "snapshots", "kept"))
        self.assertEqual(len(harness.states_in(self.nvme)), 1)

    def test_a_copy_is_resumed_in_files_of_its_own_and_says_whose_commit_it_has(self):
        whole = self.whole()
        _, copy, moved = self.apart()
        self.resumed(moved, steps=4)
        before = pathlib.Path(state_path(moved)).read_bytes()
        outcome = self.resumed(copy)
        self.assertIn(f"{copy} is a copy of {moved}", outcome.stderr)
        self.assertEqual(pathlib.Path(state_path(moved)).read_bytes(), before)
        self.assert_apart(moved, copy)
        self.assert_equal_bits(copy, whole)
        self.resumed(moved)
        self.assert_as(moved, whole)


class LostTest(RunPlaceTest):
    def test_where_a_run_was_lost_none_begins_and_its_state_is_named(self):
        run, whole = self.begun(), self.whole()
        state, aside = state_path(run), self.path("aside")
        os.rename(run, aside)
        outcome, _ = self.train(self.conf, steps=3, out=run)
        self.assert_fails(outcome, 3, state, run, "moved", "put it back")
        self.assertFalse(os.path.exists(run))
        self.assertEqual(len(harness.states_in(self.nvme)), 2)
        os.rename(aside, run)
        self.resumed(run)
        self.assert_as(run, whole)

    def test_a_run_of_the_package_that_was_lost_is_named_too(self):
        run = self.path("run")
        state = self.write("nvme/penstock-9f0c3a5b7d112233/penstock-x.state", "x")
        self.write("nvme/penstock-9f0c3a5b7d112233/run.name", {"run": run})
        outcome, _ = self.train(self.conf, steps=1, out=run)
        self.assert_fails(outcome, 3, state)

    def test_another_folder_is_free_and_a_state_that_is_gone_is_no_reason(self):
        run = self.begun()
        shutil.rmtree(run)
        self.trained(self.conf, steps=1, out=self.path("other"))
        [state] = [name for name in harness.states_in(self.nvme)
                   if name != os.path.basename(state_path(self.path("other")))]
        os.unlink(os.path.join(self.nvme, state))
        self.trained(self.conf, steps=1, out=run)


class WithoutCommitTest(RunPlaceTest):
    def as_if_killed(self, run):
        """Before run.json has named the state of the first commit."""
        self.edit(run, lambda info: info.update(state=None, leftovers=[info["state"]]))

    def test_a_run_without_a_commit_begins_anew_in_its_folder(self):
        run, whole = self.begun(), self.whole()
        state = state_path(run)
        self.as_if_killed(run)
        self.write(os.path.join(run, "notes.txt"), "the user's")
        os.truncate(state, 0)  # before its first byte
        outcome, _ = self.train(self.conf, "--resume", steps=3, out=run)
        self.assert_fails(outcome, 2, "no commit", "begins it anew")
        self.assertEqual(harness.penstock("inspect", run).code, 3)
        outcome, _ = self.train(self.conf, steps=STEPS, out=run)
        self.assertEqual(outcome.code, 0, str(outcome))
        self.assertFalse(os.path.exists(state))
        self.assertTrue(os.path.exists(os.path.join(run, "notes.txt")))
        self.assert_as(run, whole)

    def test_a_first_commit_that_run_json_does_not_name_yet_is_not_lost(self):
        run, whole = self.begun(), self.whole()
        self.as_if_killed(run)
        outcome, _ = self.train(self.conf, steps=3, out=run)
        self.assert_fails(outcome, 2, "--resume")
        self.resumed(run)
        self.assert_as(run, whole)


class OlderTest(RunPlaceTest):
    """Versions 1 and 2 of run.json; the states are the same in all versions."""

    def assert_goes_on(self, run, whole, *more):
        info = read_info(run)
        self.assertIn(info["version"], (1, 2))
        files = sorted(os.listdir(self.nvme))
        for command in (["inspect", run], ["compare", run, run], ["snapshots", run],
                        ["export", run, "--to", self.path(f"export-{os.path.basename(run)}")]):
            outcome = harness.penstock(*command)
            self.assertEqual(outcome.code, 0, str(outcome))
        self.assertEqual(read_info(run), info, "what only reads leaves it")
        self.resumed(run, *more)
        now = read_info(run)
        self.assertEqual([now["version"], now["kind"], now["place"]], [3, "train", run])
        self.assert_as(run, whole)
        if not more:
            self.assertEqual(now["state"]["uuid"], info["state_uuid"])
            self.assertEqual([name for name in sorted(os.listdir(self.nvme)) if ".state" in name],
                             [name for name in files if ".state" in name])

    def test_one_resumes_bit_for_bit_in_its_files_and_becomes_version_3(self):
        run, whole = self.begun(), self.whole()
        self.make_older(run)
        self.assert_goes_on(run, whole)

    def test_one_with_several_paths_and_one_in_its_folder(self):
        for conf in (make_config(dtype="bf16"),
                     make_config(dtype="bf16", param="nvme", optimizer="nvme",
                                 nvme_path=[self.nvme, self.make_folder("other")])):
            self.conf = conf
            run, whole = self.begun(), self.whole()
            self.make_older(run)
            self.assert_goes_on(run, whole)

    def test_one_goes_back_to_its_snapshot_of_the_same_version(self):
        run, whole = self.begun(), self.whole()
        self.assertEqual(harness.penstock("snapshot", run, "kept").code, 0)
        self.resumed(run, steps=4)
        kept = os.path.join(run, "snapshots", "kept")
        self.make_older(run, kept)
        self.assert_goes_on(run, whole, "--resume-from", "kept")
        self.assertEqual(read_info(kept)["version"], 1, "going back leaves it as it was")
        self.clean(run)
        self.clean(whole)
        self.assertEqual(os.listdir(self.nvme), [])

    def test_a_move_of_one_that_was_cut_off_is_completed(self):
        run, whole = self.begun(), self.whole()
        left = os.path.join(self.nvme, "penstock-" + "0" * 32 + ".state")
        pathlib.Path(left).write_bytes(b"")
        self.edit(run, lambda info: info["leftovers"].append(
            {"uuid": "0" * 32, "ranks": [{"host": "", "paths": [left]}]}))
        self.make_older(run)
        self.resumed(run)
        self.assertFalse(os.path.exists(left))
        self.assert_as(run, whole)

    def test_one_that_was_killed_before_its_first_commit_is_none_to_resume(self):
        run = self.begun()
        self.make_older(run)
        os.truncate(state_paths_of_older(run), 0)
        os.unlink(os.path.join(run, "metrics.jsonl"))
        outcome, _ = self.train(self.conf, "--resume", steps=3, out=run)
        self.assert_fails(outcome, 2, "no commit")
        self.clean(run)
        self.assertEqual([name for name in os.listdir(self.nvme) if name.endswith(".state")], [])

    def test_a_newer_version_is_refused_by_its_number_and_nothing_is_written(self):
        run = self.begun()
        self.edit(run, lambda info: info.update(version=4, news=[]))
        before = sorted(os.listdir(run))
        for command in ("inspect", "snapshots", "clean", "numerics"):
            outcome = harness.penstock(command, run)
            self.assert_fails(outcome, 3, "version 4")
        outcome, _ = self.train(self.conf, "--resume", steps=4, out=run)
        self.assert_fails(outcome, 3, "version 4")
        self.assertEqual(sorted(os.listdir(run)), before)


def state_paths_of_older(run):
    return os.path.join(run, read_info(run)["state_paths"][0])


if __name__ == "__main__":
    harness.main()
