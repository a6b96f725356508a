"""A trace shows what ran when: it agrees with the rows, and changes nothing."""
import collections
import json
import os

import harness
from harness import make_config, read_rows, read_summary

STEPS = 6


class TraceTest(harness.PenstockTest):
    def setUp(self):
        super().setUp()
        self.conf = make_config(dtype="bf16", param="nvme", optimizer="nvme",
                                nvme_path=self.make_folder("nvme"),
                                penstock={"tile_elements": 8192, "commit_every_steps": 2,
                                          "optimizer_threads": 2})
        self.trace = self.path("trace.json")

    def traced(self, config):
        """RUN, and {name of the row: spans by their begin}."""
        run = self.trained(config, "--trace", self.trace, steps=STEPS)
        with open(self.trace, encoding="utf-8") as file:
            events = json.load(file)
        names = {event["tid"]: event["args"]["name"] for event in events
                 if event["name"] == "thread_name"}
        rows = collections.defaultdict(list)
        for event in events:
            if event["ph"] == "X":
                rows[names[event["tid"]]].append(event)
        for spans in rows.values():
            spans.sort(key=lambda span: span["ts"])
        return run, rows

    def spans(self, rows, prefix):
        return [span for name, spans in rows.items() if name.startswith(prefix) for span in spans]

    def test_every_kind_of_work_has_its_rows_and_names(self):
        _, rows = self.traced(self.conf)
        self.assertEqual([span["name"] for span in rows["steps"]],
                         [f"step {step + 1}" for step in range(STEPS)])
        self.assertEqual([span["name"] for span in rows["commits"]],
                         [f"commit of step {step}" for step in (0, 2, 4, 6)])
        compute = {span["name"] for span in rows["compute"]}
        for name in ("h.0 forward, version 0", "h.1 backward, version 0",
                     f"h.0 forward, version {STEPS - 1}"):
            self.assertIn(name, compute)
        self.assertIn("h.0 forward, version 0", {span["name"] for span in rows["copy-in"]})
        self.assertIn("gradients of h.0", {span["name"] for span in rows["copy-out"]})
        for thread in ("optimizer 1", "optimizer 2"):
            self.assertTrue(rows[thread], thread)
        updates = [span for span in self.spans(rows, "optimizer ")
                   if span["name"] == "update h.0" and span["args"]["tile"] ==
                   min(span["args"]["tile"] for span in self.spans(rows, "optimizer ")
                       if span["name"] == "update h.0")]
        self.assertEqual(sorted(span["args"]["version"] for span in updates),
                         list(range(1, STEPS + 1)))
        self.assertIn("h.0 states", {span["name"] for span in self.spans(rows, "reads of ")})
        self.assertIn("gradient norm", {span["name"] for span in self.spans(rows, "waits for norm")})

    def test_spans_of_a_row_do_not_overlap(self):
        _, rows = self.traced(self.conf)
        for name, spans in rows.items():
            for before, after in zip(spans, spans[1:]):
                self.assertLessEqual(before["ts"] + before["dur"], after["ts"] + 0.002, name)

    def test_every_byte_of_the_rows_is_in_it(self):
        for nvme_path in ([self.path("nvme")], [self.path("nvme"), self.make_folder("second")]):
            with self.subTest(paths=len(nvme_path)):
                config = make_config(dtype="bf16", param="nvme", optimizer="nvme",
                                     nvme_path=nvme_path)
                run, rows = self.traced(config)
                os.unlink(self.trace)
                count = len(nvme_path)
                self.assertEqual(len({name.split(" (")[0] for name in rows
                                      if name.startswith("reads of ")}), count)
                summary = read_summary(run)
                # Initialisation writes each tile once, beside the head of the file.
                beside = {"read": summary["nvme_verify_bytes"], "write": summary["nvme_init_bytes"]}
                for kind, prefix in (("read", "reads of "), ("write", "writes to ")):
                    steps = sum(row[f"nvme_{kind}_bytes"] for row in read_rows(run))
                    traced = sum(span["args"]["bytes"] for span in self.spans(rows, prefix))
                    self.assertLessEqual(traced, steps + beside[kind])
                    self.assertGreaterEqual(traced, steps)

    def test_it_changes_no_number(self):
        run, _ = self.traced(self.conf)
        plain = self.trained(self.conf, steps=STEPS)
        keys = ("step", "loss", "grad_norm", "lr")
        self.assertEqual([[row[key] for key in keys] for row in read_rows(run)],
                         [[row[key] for key in keys] for row in read_rows(plain)])
        self.assertEqual(self.export(run)[0], self.export(plain)[0])

    def test_with_all_on_the_device_it_shows_steps_and_compute(self):
        _, rows = self.traced(make_config(dtype="bf16"))
        self.assertEqual(len(rows["steps"]), STEPS)
        self.assertTrue(rows["compute"])

    def test_a_file_that_is_there_is_refused_and_a_failed_run_leaves_none(self):
        self.write("trace.json", "mine")
        outcome, _ = self.train(self.conf, "--trace", self.trace)
        self.assert_fails(outcome, 2, self.trace, "exists")
        with open(self.trace, encoding="utf-8") as file:
            self.assertEqual(file.read(), "mine")
        other = self.path("other.json")
        outcome, _ = self.train(self.conf, "--trace", other, "--host-memory", "1")
        self.assertEqual(outcome.code, 2, str(outcome))
        self.assertFalse(os.path.exists(other))

    def test_a_full_drive_ends_the_trace_and_not_the_training(self):
        drive = self.make_folder("drive")
        with harness.mounted(drive, ["-t", "tmpfs", "-o", "size=64k", "none"]):
            outcome, run = self.train(self.conf, "--trace", os.path.join(drive, "trace.json"),
                                      steps=400)
            self.assert_fails(outcome, 3, "trace.json", "step 400 is committed")
            self.assertEqual(len(read_rows(run)), 400)

    def test_what_a_killed_program_wrote_is_whole_but_for_its_end(self):
        program = self.running(
            "train", "--model", self.make_model(), "--data", self.make_data(), "--config",
            self.write("killed.json", self.conf), "--out", self.path("killed"), "--steps", "1000000",
            "--trace", self.trace)
        self.wait_until(lambda: os.path.exists(self.trace) and os.path.getsize(self.trace) > 0,
                        program)
        program.kill()
        program.wait(harness.TIMEOUT_S)
        with open(self.trace, encoding="utf-8") as file:
            lines = file.read().split(",\n")
        # Viewers read on without the closing bracket.
        for line in lines[1:-1]:
            json.loads(line)


if __name__ == "__main__":
    harness.main()
