"""A run resumes from the newest commit that is whole, and says what it left and why."""
import os
import pathlib
import struct

import harness
from harness import make_config, merge, read_rows
from loop_file_system import LoopFileSystem, NotHere
from ranks_harness import RanksTest


class State:
    """A state file, as far as docs/state_format.md is needed to damage what a commit names."""

    def __init__(self, path):
        self.path = path
        self.bytes = pathlib.Path(path).read_bytes()
        self.fixed = 96 if self.u32(8) == 1 else 256
        self.weights = struct.unpack_from("<2Q", self.bytes, 144)

    def u32(self, at):
        return struct.unpack_from("<I", self.bytes, at)[0]

    def u64(self, at):
        return struct.unpack_from("<Q", self.bytes, at)[0]

    def slot(self, age):
        """The slot of tile 0 in the newest commit, or in the one before: `age` 1."""
        places = sorted(struct.unpack_from("<2Q", self.bytes, 120),
                        key=lambda place: -self.u64(place + 8))
        return self.u32(places[age] + self.fixed + 24)

    def damage(self, at, count=4096):
        with open(self.path, "r+b") as file:
            file.seek(at)
            file.write(b"\x5a" * count)


def state_of(run, rank=0):
    return State(harness.state_paths(run, rank)[0])


class WholeCommitTest(harness.PenstockTest):
    def config(self, name="nvme", **ours):
        return make_config(dtype="bf16", param="nvme", optimizer="nvme",
                           nvme_path=self.make_folder(name),
                           penstock={"commit_every_steps": 1, **ours})

    def damaged(self, *ages, config=None):
        """A run of 3 steps with damage in its newest commit (0) or in the one before (1)."""
        run = self.trained(config or self.config(), steps=3)
        state = state_of(run)
        for age in ages:
            state.damage(state.weights[state.slot(age)])
        return run

    def test_resume_goes_back_to_the_commit_before_and_on_with_the_same_bits(self):
        run = self.damaged(0)
        outcome, _ = self.train(self.config(), "--resume", steps=6, out=run)
        self.assertEqual(outcome.code, 0, str(outcome))
        for part in ("the commit of step 3 is damaged", state_of(run).path, "offset",
                     "the commit of step 2 is whole and is used", "resuming after step 2"):
            self.assertIn(part, outcome.stderr)
        self.assert_equal_bits(run, self.trained(self.config("other"), steps=6))
        self.assertEqual([row["step"] for row in read_rows(run)], list(range(1, 7)))
        inspected = harness.penstock("inspect", run)
        self.assertEqual(inspected.code, 0, str(inspected))

    def test_resume_verifies_its_commit_also_where_steps_verify_nothing(self):
        config = self.config(verify_checksums=False)
        run = self.damaged(0, config=config)
        outcome, _ = self.train(config, "--resume", steps=6, out=run)
        self.assertEqual(outcome.code, 0, str(outcome))
        self.assertIn("the commit of step 2 is whole and is used", outcome.stderr)

    def test_a_state_that_is_moved_is_moved_from_the_commit_before(self):
        run = self.damaged(0)
        outcome, _ = self.train(self.config("moved"), "--resume", steps=6, out=run)
        self.assertEqual(outcome.code, 0, str(outcome))
        self.assertIn("the commit of step 2 is whole and is used", outcome.stderr)
        self.assert_equal_bits(run, self.trained(self.config("other"), steps=6))

    def test_inspect_says_of_both_what_they_are_and_which_one_resume_takes(self):
        run = self.damaged(0)
        inspected = harness.penstock("inspect", run)
        self.assertEqual(inspected.code, 3, str(inspected))
        self.assertRegex(inspected.stdout, r"(?m)^commit +of step 3: damaged in 1 part$")
        self.assertRegex(inspected.stdout,
                         r"(?m)^commit +of step 2: whole; --resume resumes from it$")
        whole = harness.penstock("inspect", self.trained(self.config("other"), steps=3))
        self.assertRegex(whole.stdout, r"(?m)^commit +of step 3: whole; --resume resumes from it$")

    def test_export_snapshot_and_replay_take_the_commit_before_and_say_so(self):
        run = self.damaged(0)
        expected, _ = self.export(self.trained(self.config("other"), steps=2))
        to = self.path("exported")
        exported = harness.penstock("export", run, "--to", to)
        self.assertEqual(exported.code, 0, str(exported))
        self.assertIn("the commit of step 2 is whole and is used", exported.stderr)
        self.assertIn("step 2 of", exported.stdout)
        self.assertEqual(harness.read_safetensors(os.path.join(to, "model.safetensors")), expected)
        replayed = harness.penstock("replay", run, "--from", "latest", "--to", "3")
        self.assertEqual(replayed.code, 0, str(replayed))
        self.assertIn("the commit of step 2 is whole and is used", replayed.stderr)
        self.assert_snapshot_of_the_commit_before(run)

    def assert_snapshot_of_the_commit_before(self, run):
        kept = harness.penstock("snapshot", run, "kept")
        self.assertEqual(kept.code, 0, str(kept))
        self.assertIn("the commit of step 2 is whole and is used", kept.stderr)
        self.assertIn("step 2 of", kept.stdout)

    def test_a_snapshot_that_is_a_clone_is_verified_too(self):
        try:
            system = LoopFileSystem("xfs", self.folder)
        except NotHere as why:
            self.skipTest(str(why))
        self.addCleanup(system.remove)
        config = self.config()
        config["zero_optimization"]["offload_param"]["nvme_path"] = system.path
        config["zero_optimization"]["offload_optimizer"]["nvme_path"] = system.path
        self.assert_snapshot_of_the_commit_before(self.damaged(0, config=config))

    def test_compare_takes_the_commit_before_of_either_side_and_says_so(self):
        run = self.damaged(0)
        other = self.trained(self.config("other"), steps=2)
        for sides in ((run, other), (other, run)):
            compared = harness.penstock("compare", *sides)
            self.assertEqual(compared.code, 0, str(compared))
            self.assertIn("the commit of step 2 is whole and is used", compared.stderr)
            self.assertIn("equal bits", compared.stdout)
        both = harness.penstock("compare", other, self.damaged_twice())
        self.assert_fails(both, 3, "no commit is whole")

    def damaged_twice(self):
        run = self.trained(self.config("twice"), steps=3)
        state = state_of(run)
        for age in (0, 1):
            state.damage(state.weights[state.slot(age)])
        return run

    def test_where_no_commit_is_whole_the_error_names_both(self):
        run = self.damaged(0, 1)
        before = state_of(run).bytes
        for _ in range(2):
            outcome, _ = self.train(self.config(), "--resume", steps=6, out=run)
            self.assert_fails(outcome, 3, "the commit of step 3 is damaged",
                              "the commit of step 2 is damaged", "no commit is whole")
        self.assertEqual(state_of(run).bytes, before)

    def test_damage_of_the_commit_before_is_of_no_matter(self):
        run = self.damaged(1)
        outcome, _ = self.train(self.config(), "--resume", steps=6, out=run)
        self.assertEqual(outcome.code, 0, str(outcome))
        self.assertIn("resuming after step 3", outcome.stderr)

    def test_a_lost_first_head_is_named_and_mended(self):
        run = self.trained(self.config(), steps=3)
        expected, _ = self.export(run)
        state = state_of(run)
        state.damage(0)
        inspected = harness.penstock("inspect", run)
        self.assertEqual(inspected.code, 3, str(inspected))
        self.assertRegex(inspected.stdout, r"(?m)^damaged +the first head, .* at offset 0:")
        self.assertRegex(inspected.stdout, r"(?m)^commit +of step 3: whole; --resume resumes from it$")
        self.assertEqual(self.export(run)[0], expected)
        outcome, _ = self.train(self.config(), "--resume", steps=6, out=run)
        self.assertEqual(outcome.code, 0, str(outcome))
        self.assertIn("was written again", outcome.stderr)
        self.assertEqual(harness.penstock("inspect", run).code, 0)
        self.assertEqual(state_of(run).bytes[:4096], state.bytes[:4096])


class DoubtTest(harness.PenstockTest):
    """Runs that were killed after a commit whose weights give no finite loss."""

    def config(self):
        """The first two steps have a learning rate of 0, and the third ruins the weights."""
        return merge(make_config(dtype="fp16", param="nvme", optimizer="nvme",
                                 nvme_path=self.make_folder("nvme"), steps_per_print=1),
                     {"fp16": {"initial_scale_power": 8}, "penstock": {"commit_every_steps": 1},
                      "scheduler": {"type": "WarmupLR",
                                    "params": {"warmup_max_lr": 3e4, "warmup_num_steps": 10}}})

    def ruined(self):
        """As a kill leaves it that comes before the loss after the commit of step 3 is known."""
        return self.trained(self.config(), steps=3)

    def resume(self, run, *more):
        return self.train(self.config(), "--resume", *more, steps=6, out=run)[0]

    def assert_gone_back(self, outcome, run):
        self.assertEqual(outcome.code, 0, str(outcome))
        self.assertIn("the commit of step 3 gave no finite loss", outcome.stderr)
        self.assertIn("the commit of step 2 is whole and is used", outcome.stderr)
        self.assertFalse(os.path.exists(os.path.join(run, "doubt.json")))

    LOWER = ("--change", "scheduler.params.warmup_max_lr=1e-3")

    def test_a_commit_in_doubt_gives_way_to_the_one_before(self):
        run = self.ruined()
        info = harness.read_info(run)
        self.write(os.path.join(run, "doubt.json"),
                   {"state_uuid": info["state"]["uuid"], "step": 3})
        inspected = harness.penstock("inspect", run)
        self.assertRegex(inspected.stdout, r"(?m)^commit +of step 3: whole; in doubt")
        self.assertRegex(inspected.stdout, r"(?m)^commit +of step 2: whole; --resume resumes from it$")
        self.assert_gone_back(self.resume(run, *self.LOWER), run)

    def test_a_resumed_run_that_finds_its_commit_destroyed_lets_the_next_go_back(self):
        run = self.ruined()
        outcome = self.resume(run)
        self.assert_fails(outcome, 4, "the next --resume resumes from the commit before",
                          "give it --change scheduler.params.warmup_max_lr=LOWER")
        self.assertTrue(os.path.exists(os.path.join(run, "doubt.json")))
        self.assert_gone_back(self.resume(run, *self.LOWER), run)

    def test_doubt_that_an_overwritten_commit_cannot_resolve_is_named_and_blames_no_drive(self):
        run = self.ruined()
        info = harness.read_info(run)
        self.write(os.path.join(run, "doubt.json"), {"state_uuid": info["state"]["uuid"], "step": 3})
        state = state_of(run)
        state.damage(state.weights[state.slot(1)])  # as the update of step 4 leaves it
        inspected = harness.penstock("inspect", run)
        self.assertNotIn("check the drive", inspected.stdout)
        resumed = self.resume(run)
        self.assertIn("the commit of step 3 gave no finite loss, and the one before is overwritten",
                      resumed.stderr)
        self.assertNotIn("check the drive", resumed.stderr)

    def test_a_run_that_takes_its_commit_back_itself_leaves_no_note(self):
        outcome, run = self.train(self.config(), steps=6)
        self.assert_fails(outcome, 4, "the commit of step 3 was taken back")
        self.assertFalse(os.path.exists(os.path.join(run, "doubt.json")))


class RanksTogetherTest(RanksTest):
    def test_ranks_take_the_newest_commit_that_is_whole_on_all_of_them(self):
        config = self.config(penstock={"commit_every_steps": 1})
        run = self.path("run")
        self.run_ranks(2, run, config, steps=3)
        state = state_of(run, rank=1)
        state.damage(state.weights[state.slot(0)])
        outcomes = self.run_ranks(2, run, config, "--resume", steps=6)
        self.assertTrue(any("the commit of step 2 is whole and is used" in stderr
                            for stderr in outcomes), outcomes)
        other = self.path("other")
        self.run_ranks(2, other, config, steps=6)
        self.assert_equal_bits(run, other)

    def test_a_commit_that_is_left_is_named_though_rank_0_does_not_see_its_file(self):
        """Each rank has a drive of its own at the same path."""
        if os.geteuid() != 0:
            self.skipTest("only root can mount")
        nvme = self.make_folder("nvme")
        drives = [self.make_folder(f"drive{rank}") for rank in range(2)]
        under = {rank: ["unshare", "-m", "sh", "-c", f'mount --bind {drive} {nvme} && exec "$@"', "sh"]
                 for rank, drive in enumerate(drives)}
        config = self.config(penstock={"commit_every_steps": 1})
        run = self.path("run")

        def train(*more, steps):
            with self.started(2, run, config, *more, steps=steps, under=under) as programs:
                ended = [program.communicate(timeout=harness.TIMEOUT_S)[1] for program in programs]
                self.assertEqual([program.returncode for program in programs], [0, 0], ended)
            return ended

        train(steps=3)
        info = harness.read_info(run)
        state = State(os.path.join(drives[1], os.path.basename(info["state"]["ranks"][1]["paths"][0])))
        newest = max(struct.unpack_from("<2Q", state.bytes, 120), key=lambda at: state.u64(at + 8))
        state.damage(newest + 40, 16)
        said = train("--resume", steps=6)[0]
        self.assertIn("rank 1 (host ", said)
        self.assertIn("a commit was cut off there", said)
        self.assertIn("rank 0 holds a commit of step 3 that not all ranks hold", said)

    def run_ranks(self, ranks, run, config, *more, steps):
        """What each rank wrote to stderr; all must succeed."""
        outcomes = []
        for program in list(self.start(ranks, run, config, *more, steps=steps)):
            _, stderr = program.communicate(timeout=harness.TIMEOUT_S)
            self.assertEqual(program.returncode, 0, stderr)
            outcomes.append(stderr)
        return outcomes


if __name__ == "__main__":
    harness.main()
