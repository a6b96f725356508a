"""`penstock tune`: what it hands out, what it refuses, and that it leaves nothing on the drive."""
import json
import os
import re
import signal
import subprocess
import xml.etree.ElementTree as xml

import harness
from harness import make_config, penstock, read_summary


class TuneTest(harness.PenstockTest):
    def setUp(self):
        super().setUp()
        self.drive = self.make_folder("drive")

    def tune(self, *more, drive=None):
        return penstock("tune", "--nvme-path", drive or self.drive, "--quick", *more)

    def assert_refused(self, outcome, code, *fragments, drive=None):
        """Refused before anything was written."""
        self.assert_fails(outcome, code, *fragments)
        self.assertEqual(os.listdir(drive or self.drive), [])


class ResultTest(TuneTest):
    def test_table_fragment_and_plot(self):
        fragment, plot = self.path("tune.json"), self.path("tune.svg")
        outcome = self.tune("--size", "4MiB", "--out", fragment, "--plot", plot)
        self.assertEqual(outcome.code, 0, str(outcome))
        self.assertEqual((outcome.errors, outcome.stray), ([], []), str(outcome))
        self.assertEqual(os.listdir(self.drive), [])
        for engine in ("io_uring", "libaio", "threads"):
            self.assertRegex(outcome.stdout, rf"(?m)^.. *{engine} ")
        self.assert_says_what_is_written(outcome)
        self.assert_recommends_what_it_writes(outcome.stdout, fragment)
        root = xml.parse(plot).getroot()
        self.assertEqual(root.tag, "{http://www.w3.org/2000/svg}svg")
        cells = [rect for rect in root.iter("{http://www.w3.org/2000/svg}rect")
                 if rect.get("class") == "cell"]
        configurations = int(re.search(r": (\d+) configurations", outcome.stderr).group(1))
        self.assertEqual(len(cells), 3 * configurations)
        self.assert_trains_with(fragment)

    def assert_says_what_is_written(self, outcome):
        self.assertRegex(outcome.stderr, r"writes .* at most")
        written = re.search(r"Written in all: .*\((\d+) bytes\)", outcome.stdout)
        self.assertIsNotNone(written, outcome.stdout)
        self.assertGreater(int(written.group(1)), 4 << 20)

    def assert_recommends_what_it_writes(self, stdout, fragment):
        with open(fragment, encoding="utf-8") as file:
            config = json.load(file)
        unit, depth = config["aio"]["block_size"] >> 10, config["aio"]["queue_depth"]
        block = f"{unit} KiB" if unit < 1024 else f"{unit >> 10} MiB"
        self.assertIn(f"Recommended: {block} x {depth}:", stdout)
        self.assertIn(f"engine {config['penstock']['aio']['engine']}, ", stdout)

    def assert_trains_with(self, fragment):
        """`train --config A --config F`, where A names the number of threads as DeepSpeed does."""
        config = make_config(param="nvme", optimizer="nvme", nvme_path=self.make_folder("nvme"),
                             aio={"intra_op_parallelism": 3})
        run = self.trained(config, "--config", fragment, steps=1)
        with open(fragment, encoding="utf-8") as file:
            tuned = json.load(file)
        understood = read_summary(run)["config"]
        for key in ("block_size", "queue_depth", "thread_count"):
            self.assertEqual(understood["aio"][key], tuned["aio"][key])
        self.assertEqual(read_summary(run)["aio_engine"], tuned["penstock"]["aio"]["engine"])

    def test_without_out_the_fragment_is_on_stdout(self):
        outcome = self.tune("--size", "1MiB")
        self.assertEqual(outcome.code, 0, str(outcome))
        fragment = json.loads(outcome.stdout[outcome.stdout.index("\n{"):])
        self.assertIn("block_size", fragment["aio"])
        self.assertIn("engine", fragment["penstock"]["aio"])


class RefusalTest(TuneTest):
    def test_a_missing_folder(self):
        missing = self.path("missing")
        self.assert_fails(self.tune(drive=missing), 3, missing)
        self.assertFalse(os.path.exists(missing))

    def test_a_file_instead_of_a_folder(self):
        self.assert_fails(self.tune(drive=self.write("file", "x")), 3, "file")

    def test_a_drive_without_space_names_free_and_needed_bytes(self):
        drive = os.statvfs(self.drive)
        needed = (drive.f_blocks + 1) * drive.f_frsize + (1 << 20) & ~((1 << 20) - 1)
        outcome = self.tune("--size", str(needed))
        self.assert_refused(outcome, 3, f"{needed} bytes", "are free")

    def test_a_small_drive(self):
        with harness.mounted(self.drive, ["-t", "tmpfs", "-o", "size=1M", "none"]):
            self.assert_refused(self.tune("--size", "4MiB"), 3, self.drive)

    def test_a_file_system_without_direct_io(self):
        with harness.mounted(self.drive, ["-t", "ramfs", "none"]):
            self.assert_refused(self.tune("--size", "4MiB"), 3, "O_DIRECT", self.drive)

    def test_outputs_that_exist_or_cannot_be_written(self):
        taken = self.write("taken", "mine")
        for option in ("--out", "--plot"):
            with self.subTest(option=option):
                self.assert_refused(self.tune(option, taken), 2, option, taken)
                nowhere = self.path("nowhere/file")
                self.assert_refused(self.tune(option, nowhere), 3, option, nowhere)
        with open(taken, encoding="utf-8") as file:
            self.assertEqual(file.read(), "mine")

    def test_outputs_that_are_one_file(self):
        name = self.path("both")
        outcome = self.tune("--out", name, "--plot", os.path.join(self.drive, "..", "both"))
        self.assert_refused(outcome, 2, "--out", "--plot", name)
        self.assertFalse(os.path.exists(name))

    def test_an_output_that_somebody_made_meanwhile_is_not_replaced(self):
        out = self.path("tune.json")
        program = self.running("tune", "--nvme-path", self.drive, "--quick", "--size", "1MiB",
                               "--out", out, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.wait_for_line("", program)  # past the checks
        self.write("tune.json", "mine")
        stdout, stderr = program.communicate(timeout=harness.TIMEOUT_S)
        self.assertEqual(program.returncode, 2, stderr)
        self.assertIn("Recommended:", stdout)
        self.assertIn(out, stderr)
        with open(out, encoding="utf-8") as file:
            self.assertEqual(file.read(), "mine")

    def test_a_size_in_which_nothing_can_be_measured(self):
        self.assert_refused(self.tune("--size", "4096"), 2, "--size")


class InterruptTest(TuneTest):
    def start(self, text):
        """A full tuning that has written a line with `text` to stderr. Its file has no name."""
        program = self.running("tune", "--nvme-path", self.drive, "--size", "64MiB", "--out",
                               self.path("tune.json"), stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE)
        self.wait_for_line(text, program)
        self.assertEqual(os.listdir(self.drive), [], "the file has a name")
        return program

    def test_a_signal_ends_it_with_130_and_nothing_is_left(self):
        for stop in (signal.SIGINT, signal.SIGTERM):
            with self.subTest(signal=stop.name):
                program = self.start("penstock: grid ")
                program.send_signal(stop)
                stdout, stderr = program.communicate(timeout=harness.TIMEOUT_S)
                self.assertEqual(program.returncode, 130, stderr)
                self.assertEqual(stdout, "")
                self.assertIn("interrupted", stderr)
                self.assertNotIn("error", stderr)
                self.assertEqual(os.listdir(self.drive), [])
                self.assertFalse(os.path.exists(self.path("tune.json")))

    def test_nothing_is_left_of_a_killed_one(self):
        program = self.start("penstock: writing the file once")
        program.kill()
        program.communicate(timeout=harness.TIMEOUT_S)
        self.assertEqual(os.listdir(self.drive), [])


if __name__ == "__main__":
    harness.main()
