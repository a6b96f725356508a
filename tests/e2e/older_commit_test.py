"""Runs that an older version began, whose commits lack the keys that came later, go on where their
numbers are the same, and are refused where they are not. The commits of today are made old by
tests/hostile/state_bytes.py.
"""
import json
import pathlib
import sys

import harness
from harness import make_config, read_rows, state_path

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "hostile"))

try:
    import xxhash
except ImportError:
    xxhash = None
else:
    import state_bytes


def forget(path, key):
    """Takes a key from what the newest commit of a state says of its run; whether it was there."""
    state = state_bytes.read(path)
    place = state.newest()
    begin, end = state.commit_text(place)
    text = json.loads(bytes(state.bytes[begin:end]))
    found = text["run"].pop(key, None) is not None
    shorter = json.dumps(text, separators=(",", ":")).encode()
    # Behind the text lies a checksum, and behind that zeros.
    state.bytes[begin:end + 8] = shorter.ljust(end + 8 - begin, b"\0")
    state.put("Q", place + 32, begin - place + len(shorter) + 8)
    state.put("Q", place + 48, len(shorter))
    state.seal_commit(place)
    pathlib.Path(path).write_bytes(state.bytes)
    return found


class OlderCommitTest(harness.PenstockTest):
    def setUp(self):
        if xxhash is None:
            self.skipTest("no xxhash for this Python; scripts/setup --tests installs it")
        super().setUp()

    def older(self, micro_batches, key):
        """The config and folder of a run of 3 steps whose commit lost the key; whether it had it."""
        config = make_config(micro_batches=micro_batches, param="nvme", optimizer="nvme",
                             nvme_path=self.make_folder("nvme"))
        run = self.trained(config, steps=3)
        had = forget(state_path(run), key)
        self.assertRegex(harness.penstock("inspect", run).stdout, r"(?m)^checksums +all verified$")
        return config, run, had

    def test_one_with_several_micro_batches_is_refused_by_how_they_are_added_up(self):
        config, run, had = self.older(2, "gradient_sums")
        self.assertTrue(had)
        before = pathlib.Path(state_path(run)).read_bytes()
        outcome, _ = self.train(config, "--resume", steps=6, out=run)
        self.assert_fails(outcome, 2, "step 3", "gradient_sums is 2, was not there", "micro-batches")
        self.assertEqual(pathlib.Path(state_path(run)).read_bytes(), before)
        self.assertEqual(len(read_rows(run)), 3)

    def test_one_with_one_micro_batch_resumes(self):
        config, run, had = self.older(1, "gradient_sums")
        self.assertFalse(had)
        outcome, _ = self.train(config, "--resume", steps=6, out=run)
        self.assertEqual(outcome.code, 0, str(outcome))
        self.assert_equal_bits(run, self.trained(config, steps=6))


if __name__ == "__main__":
    harness.main()
