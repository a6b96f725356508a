"""`penstock numerics`: the table and the plot of a run."""
import json
import os
import xml.etree.ElementTree as xml

import harness
from harness import make_config, penstock

SVG = "{http://www.w3.org/2000/svg}"
REPORT = {"step": 2, "kind": "loss_spike", "tensor": None, "layer": None, "pass": "forward",
          "micro_batch": None, "rows": [3], "value": 9.5, "message": "step 2: the loss is 9.5"}


class NumericsTest(harness.PenstockTest):
    def setUp(self):
        super().setUp()
        self.run_folder = self.trained(make_config(), steps=3)
        self.plot = os.path.join(self.folder, "plot.svg")

    def add(self, name, *values):
        with open(os.path.join(self.run_folder, name), "w", encoding="utf-8") as file:
            for value in values:
                file.write(json.dumps(value) + "\n")

    def test_table_and_plot(self):
        self.add("numerics.jsonl", REPORT)
        self.add("headroom.jsonl",
                 {"step": 1, "attention": [1, 2], "mlp": [1, 16376], "residual": [1, 2]})
        outcome = penstock("numerics", self.run_folder, "--plot", self.plot)
        self.assertEqual((outcome.code, outcome.stderr), (0, ""), str(outcome))
        self.assertIn("3 steps (0 skipped), 1 report\n", outcome.stdout)
        self.assertRegex(outcome.stdout, r"(?m)^ +2  loss_spike  forward .* the loss is 9.5$")
        self.assertIn("2.0 bits, mlp of layer 1 at step 1", outcome.stdout)
        root = xml.parse(self.plot).getroot()
        self.assertEqual(root.tag, SVG + "svg")
        panels = [rect for rect in root.iter(SVG + "rect") if rect.get("class") == "panel"]
        lines = [path for path in root.iter(SVG + "path") if path.get("class") == "line"]
        self.assertEqual((len(panels), len(lines)), (4, 5))
        self.assertIn(REPORT["message"], [title.text for title in root.iter(SVG + "title")])

    def test_outputs_that_exist_and_folders_that_are_no_runs(self):
        with open(self.plot, "w", encoding="utf-8") as file:
            file.write("mine")
        self.assert_fails(penstock("numerics", self.run_folder, "--plot", self.plot), 2, self.plot)
        with open(self.plot, encoding="utf-8") as file:
            self.assertEqual(file.read(), "mine")
        self.assert_fails(penstock("numerics", self.folder), 3, self.folder)

    def test_clean_removes_what_is_the_runs(self):
        self.add("numerics.jsonl", REPORT)
        self.add("headroom.jsonl")
        self.add("overflow.json", {})
        outcome = penstock("clean", self.run_folder, "--yes")
        self.assertEqual(outcome.code, 0, str(outcome))
        self.assertFalse(os.path.exists(self.run_folder))


if __name__ == "__main__":
    harness.main()
