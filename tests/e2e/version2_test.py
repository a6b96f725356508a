"""States of format version 2, which no training of today writes, are read as those of version 1 are
that they were made of (tests/hostile/transcode.py). scripts/hostile mutates them.
"""
import glob
import os
import pathlib
import sys

import harness
from harness import penstock, read_safetensors

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "hostile"))

try:
    import xxhash
except ImportError:
    xxhash = None
else:
    import base_set
    import state_bytes


class Version2Test(harness.PenstockTest):
    def setUp(self):
        if xxhash is None:
            self.skipTest("no xxhash for this Python; scripts/setup --tests installs it")
        super().setUp()
        base_set.make(harness.PROGRAM, self.path("base"))

    def penstock(self, variant, *arguments, code=0):
        """In the folder of a variant."""
        outcome = penstock(*arguments, cwd=self.path(f"base/{variant}"),
                           env=base_set.program_environment())
        self.assertEqual(outcome.code, code, str(outcome))
        return outcome

    def exported(self, variant, of, to, *more):
        """The weights of a run or snapshot."""
        self.penstock(variant, "export", of, "--to", to, *more)
        return read_safetensors(self.path(f"base/{variant}/{to}/model.safetensors"))

    def runs_of(self, variant):
        """The run and its snapshots."""
        return [of for of in ("run", "run/snapshots/kept")
                if os.path.exists(self.path(f"base/{variant}/{of}/run.json"))]

    def test_they_are_read_as_the_states_that_they_were_made_of(self):
        for variant, (origin, _) in base_set.VERSION_2.items():
            for number, of in enumerate(self.runs_of(variant)):
                with self.subTest(variant, of=of):
                    for path in base_set.state_paths(self.path(f"base/{variant}/{of}")):
                        self.assertEqual(state_bytes.read(path).version, 2)
                        state_bytes.check_understood(path)
                    inspected = self.penstock(variant, "inspect", of).stdout
                    self.assertRegex(inspected, r"(?m)^checksums +all verified$")
                    # A frozen tensor has lost what is beyond bf16.
                    to, bf16 = f"{variant}-{number}", ("--dtype", "bf16")
                    self.assertEqual(self.exported(variant, of, f"{to}-bf16", *bf16),
                                     self.exported(origin, of, f"{to}-bf16", *bf16))
                    self.exported(variant, of, to)
                    self.penstock(variant, "compare", of, to)
                    self.penstock(variant, "compare", of, of)
            self.penstock(variant, "snapshot", "run", "new")
            self.penstock(variant, "inspect", "run/snapshots/new")
            self.penstock(variant, "compare", "run", "run/snapshots/new")

    def test_a_training_resumes_from_one_that_names_its_groups_differently(self):
        for variant in ("nvme", "nvme-renamed"):
            self.penstock(variant, *base_set.TRAIN, "--steps", "4", "--resume")
            self.exported(variant, "run", "to")
        self.penstock("nvme-renamed", "compare", "run", "../nvme/to")

    def test_what_no_training_keeps_is_not_gone_on_from(self):
        for variant in base_set.VERSION_2:
            if variant == "nvme-renamed":
                continue
            before = {path: pathlib.Path(path).read_bytes()
                      for path in glob.glob(self.path(f"base/{variant}/**/*.state"), recursive=True)}
            refused = self.penstock(variant, *base_set.TRAIN, "--steps", "4", "--resume", code=2)
            self.assertIn("other tensors or optimizer states", refused.errors[0])
            for path, content in before.items():
                self.assertEqual(pathlib.Path(path).read_bytes(), content, path)


if __name__ == "__main__":
    harness.main()
