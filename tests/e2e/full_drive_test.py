"""A training that has its space continues when others have filled its drive."""
import os
import re

import harness
from harness import make_config
from loop_file_system import LoopFileSystem, NotHere

LEFT_FREE = 20 << 20


class FullDriveTest(harness.PenstockTest):
    def system(self, kind):
        try:
            system = LoopFileSystem(kind, self.folder)
        except NotHere as why:
            self.skipTest(str(why))
        self.addCleanup(system.remove)
        return system

    def test_it_resumes_on_an_xfs_with_less_free_space_than_its_state(self):
        """XFS takes the space of a reservation once more, for the time that it lasts."""
        for kind in ("xfs", "ext4"):
            with self.subTest(kind=kind):
                system = self.system(kind)
                nvme = os.path.join(system.path, "nvme")
                os.makedirs(nvme)
                config = make_config(dtype="bf16", param="nvme", optimizer="nvme", nvme_path=nvme)
                model = self.make_model("large", n_embd=256)
                outcome, run = self.train(config, model=model, steps=2)
                self.assertEqual(outcome.code, 0, str(outcome))
                [state] = harness.states_in(nvme)
                size = os.path.getsize(os.path.join(nvme, state))
                self.assertGreater(size, 2 * LEFT_FREE)
                system.fill(LEFT_FREE)
                self.assertLess(system.free(), 2 * LEFT_FREE)
                resumed, _ = self.train(config, "--resume", model=model, steps=4, out=run)
                self.assertEqual(resumed.code, 0, str(resumed))
                self.assertEqual(os.path.getsize(os.path.join(nvme, state)), size)

    def test_a_snapshot_that_shares_blocks_needs_the_space_of_a_copy(self):
        """The run's next writes take new blocks, whatever was reserved before."""
        system = self.system("xfs")
        nvme = os.path.join(system.path, "nvme")
        os.makedirs(nvme)
        config = make_config(dtype="bf16", param="nvme", optimizer="nvme", nvme_path=nvme)
        model = self.make_model("large", n_embd=256)
        outcome, run = self.train(config, model=model, steps=2)
        self.assertEqual(outcome.code, 0, str(outcome))
        before = system.free()
        kept = harness.penstock("snapshot", run, "kept")
        self.assertEqual(kept.code, 0, str(kept))
        self.assertGreater(system.free(), before - (8 << 20), "there are no reflinks")
        resumed, _ = self.train(config, "--resume", model=model, steps=3, out=run)
        self.assertEqual(resumed.code, 0, str(resumed))
        self.assertRegex(resumed.stderr, r"shares .* with copies of it, such as snapshots")
        shared = re.search(r"shares ([0-9.]+) MiB", resumed.stderr)
        [state] = [name for name in harness.states_in(nvme) if "snapshot" not in name]
        whole = os.path.getsize(os.path.join(nvme, state)) / 2**20
        self.assertLess(float(shared.group(1)), 0.6 * whole, "the slot that no commit names, too")
        system.fill(LEFT_FREE)
        refused = harness.penstock("snapshot", run, "another")
        self.assert_fails(refused, 3, "no space", "the copy of the commit takes")


if __name__ == "__main__":
    harness.main()
