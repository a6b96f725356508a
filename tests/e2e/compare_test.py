"""`penstock compare`: exit code 0 for equal, 1 with the places where not, 2 and 3 for errors."""
import fcntl
import os
import struct
import re

import harness
from harness import make_config, merge


class CompareTest(harness.PenstockTest):
    def config(self, **override):
        return make_config(dtype="bf16", param="nvme", optimizer="nvme",
                           nvme_path=self.make_folder("nvme"), **override)

    def assert_differ(self, a, b, *fragments):
        outcome = self.compare(a, b)
        self.assertEqual(outcome.code, 1, outcome.stdout)
        for fragment in fragments:
            self.assertIn(fragment, outcome.stdout)
        return outcome.stdout

    def test_placements_tile_sizes_and_drives_leave_every_state_equal(self):
        run = self.trained(self.config(), steps=4)
        tiles = self.trained(self.config(penstock={"tile_elements": 4096}), steps=4)
        host = self.trained(make_config(dtype="bf16", param="cpu", optimizer="cpu"), steps=4)
        drives = self.trained(make_config(
            dtype="bf16", param="nvme", optimizer="nvme",
            nvme_path=[self.make_folder("drive0"), self.make_folder("drive1")]), steps=4)
        for other in (tiles, host, drives):
            self.assert_equal_bits(run, other)
            self.assertIn("exp_avg_sq", self.compare(run, other).stdout)

    def test_another_number_of_steps_shows_in_every_state(self):
        text = self.assert_differ(self.trained(self.config(), steps=3),
                                  self.trained(self.config(), steps=4),
                                  "step: 3 in A, 4 in B", "optimizer steps: 3 in A, 4 in B")
        for state in ("weight", "exp_avg", "exp_avg_sq"):
            self.assertRegex(text, rf"(?m)^h\.1\.mlp\.c_fc\.weight +{state} +\d+ of 16384 ")

    def test_the_same_weights_with_other_moments_differ_in_the_moments_alone(self):
        run = self.trained(self.config(), steps=2)
        again = self.trained(self.config(), steps=0, model=self.export(run)[1])
        text = self.assert_differ(run, again, "step: 2 in A, 0 in B")
        self.assertNotRegex(text, r"(?m)^\S+ +weight ")
        self.assertRegex(text, r"(?m)^wte\.weight +exp_avg ")

    def test_one_flipped_bit_of_a_file_is_found(self):
        tensors, folder = self.export(self.trained(self.config(), steps=1))
        name = "transformer.h.2.ln_1.weight"
        dtype, shape, data = tensors[name]
        changed = bytes([data[40] ^ 1])
        other = self.path("other.safetensors")
        harness.write_safetensors(other, {**tensors, name: (dtype, shape,
                                                            data[:40] + changed + data[41:])})
        text = self.assert_differ(folder, other)
        rows = [line for line in text.splitlines() if line.startswith("h.")]
        self.assertEqual(len(rows), 1, text)
        self.assertRegex(rows[0], r"^h\.2\.ln_1\.weight +weight +1 of 64 +\[10\] .* 1 +0, 0$")
        self.assertRegex(text, r": 1 different\n$")

    def test_models_of_different_size_name_what_is_not_there(self):
        small = self.trained(self.config(), steps=0, model=self.make_model("small", n_layer=2))
        text = self.assert_differ(self.trained(self.config(), steps=0), small)
        self.assertEqual(len(re.findall(r"(?m)^h\.2\.\S+ \[.*\] is only in A$", text)), 12)

    def test_errors_are_no_differences(self):
        run = self.trained(self.config(), steps=1)
        for other, code in (("nowhere", 3), (self.make_folder("empty"), 3),
                            (self.write("short.safetensors", b"1234"), 3)):
            self.assert_fails(harness.penstock("compare", run, self.path(other)), code,
                              os.path.basename(other))
        self.assert_fails(harness.penstock("compare", run), 2)
        with open(harness.state_path(run), "rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            self.assert_fails(harness.penstock("compare", run, run), 3, "in use")

    def test_a_damaged_run_is_an_error(self):
        run = self.trained(merge(self.config(), {"penstock": {"durable": False}}), steps=1)
        with open(harness.state_path(run), "r+b") as file:
            file.seek(192)  # the file size, in front of which a guard lies, and the last tile before it
            size, = struct.unpack("<Q", file.read(8))
            file.seek(size - 2 * 4096)
            file.write(b"\xff" * 4096)
        self.assert_fails(harness.penstock("compare", run, run), 3, "checksum")


if __name__ == "__main__":
    harness.main()
