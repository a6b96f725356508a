"""scripts/draw_step draws each span of a step in its band, and says what is wrong with a trace."""

import json
import pathlib
import subprocess
import sys
import tempfile
import unittest
from xml.etree import ElementTree

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "scripts" / "draw_step"
SVG = "{http://www.w3.org/2000/svg}"

# Name of the row, name of the span, begin and length in milliseconds.
SPANS = (
    ("steps", "step 1", 0, 300), ("steps", "step 2", 300, 100),
    ("steps", "step 3", 400, 110), ("steps", "step 4", 510, 500),
    ("reads of /nvme", "h.0 states", 300, 4), ("reads of /nvme (2)", "h.0 weight", 301, 3),
    ("optimizer 1", "update h.0", 304, 5), ("writes to /nvme", "h.0 weight", 309, 2),
    ("copy-in", "h.0 forward, version 1", 309, 1),
    ("compute", "h.0 forward, version 1", 310, 20), ("compute", "h.1 forward, version 1", 330, 20),
    ("compute", "wait for copy-in", 348, 2), ("compute", "h.1 backward, version 1", 350, 20),
    ("compute", "h.0 backward, version 1", 370, 30),
    ("copy-out", "gradients of h.0", 395, 2), ("optimizer 1", "norm h.0", 397, 1),
    ("compute", "h.0 forward, version 2", 405, 50), ("compute", "h.0 backward, version 2", 455, 45),
)


class DrawStepTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.trace = pathlib.Path(folder.name) / "trace.json"
        self.svg = pathlib.Path(folder.name) / "step.svg"

    def run_script(self, *arguments):
        return subprocess.run([sys.executable, SCRIPT, *arguments], check=False,
                              capture_output=True, text=True)

    def assert_one_line(self, outcome, *words):
        self.assertEqual(outcome.returncode, 1)
        self.assertEqual(outcome.stderr.count("\n"), 1, outcome.stderr)
        for word in ("draw_step: error: ", *words):
            self.assertIn(word, outcome.stderr)

    def draw(self, spans, *arguments):
        rows = list(dict.fromkeys(row for row, *_ in spans))
        events = [{"name": "thread_name", "ph": "M", "tid": i, "args": {"name": row}}
                  for i, row in enumerate(rows)]
        events += [{"name": name, "ph": "X", "tid": rows.index(row), "ts": begin * 1e3,
                    "dur": length * 1e3} for row, name, begin, length in spans]
        self.trace.write_text(json.dumps(events), encoding="utf-8")
        return self.run_script(self.trace, self.svg, *arguments)

    def drawn(self):
        """{tooltip: (x, y, width, colour)} of all spans in the picture."""
        return {rect.find(SVG + "title").text:
                (float(rect.get("x")), float(rect.get("y")), float(rect.get("width")),
                 rect.get("fill"))
                for rect in ElementTree.parse(self.svg).iter(SVG + "rect")
                if rect.find(SVG + "title") is not None}

    def test_each_span_of_the_step_is_in_its_band_and_in_the_colour_of_its_module(self):
        outcome = self.draw(SPANS, "2")
        self.assertEqual(outcome.returncode, 0, outcome.stderr)
        drawn = self.drawn()
        order = ["h.0 states: 4.0 ms", "update h.0: 5.0 ms", "h.0 weight: 2.0 ms",
                 "h.0 forward, version 1: 1.0 ms", "h.0 forward, version 1: 20.0 ms",
                 "gradients of h.0: 2.0 ms", "norm h.0: 1.0 ms"]
        self.assertEqual(len({drawn[name][3] for name in order}), 1)
        heights = [drawn[name][1] for name in order]
        self.assertEqual(heights, sorted(set(heights)))
        self.assertNotEqual(drawn["h.1 forward, version 1: 20.0 ms"][3], drawn[order[0]][3])
        self.assertNotIn("h.0 backward, version 2: 45.0 ms", drawn)  # after what is drawn
        self.assertFalse([name for name in drawn if name.startswith("wait for ")])

    def test_lengths_are_in_proportion_and_requests_at_once_lie_below_each_other(self):
        self.draw(SPANS, "2")
        drawn = self.drawn()
        update, compute = drawn["update h.0: 5.0 ms"], drawn["h.0 forward, version 1: 20.0 ms"]
        self.assertAlmostEqual(compute[2] / update[2], 4, delta=0.05)
        self.assertLess(drawn["h.0 states: 4.0 ms"][1], drawn["h.0 weight: 3.0 ms"][1])

    def test_without_a_number_it_is_the_step_of_median_length(self):
        self.assertIn("step 2, 100 ms", self.draw(SPANS).stdout)

    def test_what_cannot_be_drawn_is_one_line(self):
        in_memory = (*SPANS[:4], ("compute", "compute", 310, 90))
        for spans, arguments, words in ((SPANS, ["9"], "no step 9"), (SPANS[:2], [], "name one"),
                                        (in_memory, [], "no module")):
            outcome = self.draw(spans, *arguments)
            self.assertNotEqual(outcome.returncode, 0)
            self.assertIn(words, outcome.stderr)
            self.assertEqual(outcome.stderr.count("\n"), 1)

    def test_a_file_that_is_missing_or_no_whole_trace_is_one_line(self):
        missing = self.trace.with_name("none.json")
        self.assert_one_line(self.run_script(missing, self.svg), str(missing), "No such file")
        self.draw(SPANS)
        self.svg.unlink()
        whole = self.trace.read_bytes()
        for text in (whole[:len(whole) // 2], whole[:-1], b"", b"\xff"):
            self.trace.write_bytes(text)
            self.assert_one_line(self.run_script(self.trace, self.svg), str(self.trace), "whole")
        for text in ('{"a": 1}', "3", '[{"ph": "X"}]'):
            self.trace.write_text(text, encoding="utf-8")
            self.assert_one_line(self.run_script(self.trace, self.svg), str(self.trace), "--trace")
        self.assertFalse(self.svg.exists())

    def test_a_picture_that_cannot_be_written_is_one_line(self):
        self.svg = self.svg / "none" / "step.svg"
        self.assert_one_line(self.draw(SPANS), str(self.svg))

    def test_wrong_arguments_are_answered_with_the_usage(self):
        for arguments in ((), (self.trace, self.svg, "last"), (self.trace, self.svg, "1", "2")):
            outcome = self.run_script(*arguments)
            self.assertEqual(outcome.returncode, 2)
            self.assertIn("scripts/draw_step TRACE SVG [STEP]", outcome.stderr)
            self.assertNotIn("Traceback", outcome.stderr)

    def test_the_axis_has_ticks_for_steps_of_any_length(self):
        for shorter, ticks in ((1, ["0", "20 ms", "40 ms"]), (20, ["0", "1 ms", "2 ms"]),
                               (500, ["0", "0.05 ms", "0.1 ms"]), (1e-4, ["0", "200000 ms"])):
            with self.subTest(shorter=shorter):
                outcome = self.draw([(row, name, begin / shorter, length / shorter)
                                     for row, name, begin, length in SPANS], "2")
                self.assertEqual(outcome.returncode, 0, outcome.stderr)
                texts = [text.text for text in ElementTree.parse(self.svg).iter(SVG + "text")]
                at = texts.index("0")
                self.assertEqual(texts[at:at + len(ticks)], ticks)
                self.assertTrue(5 <= len(texts[at:]) <= 11, texts[at:])


if __name__ == "__main__":
    unittest.main()
