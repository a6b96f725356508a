"""A damaged state file: which bytes, which command says so, and what it writes."""
import fcntl
import os
import re
import shutil
import struct

import harness
from harness import make_config


class StateFileTest(harness.PenstockTest):
    DRIVES = 1

    def setUp(self):
        super().setUp()
        folders = [self.make_folder(f"nvme{i}") for i in range(self.DRIVES)]
        config = make_config(dtype="bf16", param="nvme", optimizer="nvme", nvme_path=folders)
        self.run_folder = self.trained(config, steps=3)
        self.states = harness.state_paths(self.run_folder)
        # What the tests damage; with several drives it is the last one.
        self.state = self.states[-1]

    def assert_inspect_fails(self, *fragments):
        """One error; stdout says all the same which files there are."""
        outcome = harness.penstock("inspect", self.run_folder)
        self.assertRegex(outcome.stdout, rf"(?m)^state file +{re.escape(self.state)} \(")
        outcome.stdout = ""
        self.assert_fails(outcome, 3, *fragments)

    def assert_unreadable(self, *fragments):
        self.assert_inspect_fails(*fragments)
        to = self.path("export")
        self.assert_fails(harness.penstock("export", self.run_folder, "--to", to), 3, *fragments)
        self.assertFalse(os.path.exists(os.path.join(to, "config.json")))

    def assert_damaged(self, *fragments):
        outcome = harness.penstock("inspect", self.run_folder)
        self.assertEqual(outcome.code, 3, str(outcome))
        self.assertEqual(len(outcome.errors), 1, str(outcome))
        for fragment in fragments:
            self.assertIn(fragment, outcome.errors[0])
        self.assertRegex(outcome.stdout, rf"damaged +.*{re.escape(self.state)} at offset")
        to = self.path("export")
        self.assert_fails(harness.penstock("export", self.run_folder, "--to", to), 3, *fragments)
        self.assertFalse(os.path.exists(os.path.join(to, "config.json")))

    def flip(self, *offsets):
        with open(self.state, "r+b") as file:
            for offset in offsets:
                file.seek(offset)
                byte = file.read(1)[0]
                file.seek(offset)
                file.write(bytes([byte ^ 1]))

    def header(self, offset, count):
        """Little-endian u64 fields of the header (docs/state_format.md)."""
        with open(self.state, "rb") as file:
            return struct.unpack(f"<{count}Q", file.read(offset + 8 * count)[offset:])

    def test_a_whole_one_is_verified(self):
        outcome = harness.penstock("inspect", self.run_folder)
        self.assertEqual(outcome.code, 0, str(outcome))
        self.assertRegex(outcome.stdout, r"committed step +3\n")
        self.assertRegex(outcome.stdout, r"checksums +all verified\n")

    def test_a_flipped_bit_in_a_weight(self):
        self.flip(*(offset + 100 for offset in self.header(144, 2)))
        self.assert_damaged("checksum", self.state)

    def test_a_flipped_bit_in_a_record(self):
        self.flip(*(offset + 100 for offset in self.header(160, 2)))
        self.assert_damaged("checksum", self.state)

    def test_a_flipped_bit_in_both_commit_records(self):
        self.state = self.states[0]
        self.flip(*(offset + 60 for offset in self.header(120, 2)))
        self.assert_unreadable(self.state)

    def test_a_flipped_bit_in_both_headers(self):
        self.flip(65, os.path.getsize(self.state) - 4096 + 65)
        if self.DRIVES == 1:
            self.assert_unreadable(self.state)
            return
        outcome = harness.penstock("inspect", self.run_folder)  # the other drive has the head, too
        self.assertEqual(outcome.code, 3, str(outcome))
        self.assertRegex(outcome.stdout, rf"damaged +the first head, {re.escape(self.state)} at")
        self.export(self.run_folder)

    def test_a_missing_file(self):
        os.unlink(self.state)
        self.assert_unreadable(self.state)

    def test_a_file_in_use(self):
        with open(self.state, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            self.assert_inspect_fails(self.state)

    def test_export_refuses_a_folder_that_holds_a_model(self):
        _, to = self.export(self.run_folder)
        self.assert_fails(harness.penstock("export", self.run_folder, "--to", to), 2, to)

    def test_what_is_no_run(self):
        for command in (["inspect", self.folder], ["export", self.folder, "--to", self.path("x")]):
            self.assert_fails(harness.penstock(*command), 3, self.folder)


class SeveralDrivesTest(StateFileTest):
    DRIVES = 2

    def test_each_file_is_named_with_its_share(self):
        outcome = harness.penstock("inspect", self.run_folder)
        shares = [re.search(rf"state file +{re.escape(path)} \([^,]*, ([0-9.]+) % of the state\)\n",
                            outcome.stdout) for path in self.states]
        self.assertAlmostEqual(sum(float(share[1]) for share in shares), 100, delta=0.2)

    def test_a_file_of_another_state(self):
        os.unlink(self.state)
        shutil.copyfile(self.states[0], self.state)
        self.assert_unreadable(self.state, "number 2")


if __name__ == "__main__":
    harness.main()
