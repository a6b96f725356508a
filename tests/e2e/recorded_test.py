"""Every device computes the losses that were recorded on the CPU device, in fp32."""
import json
import os

import harness
from harness import make_config, read_rows

RECORDED = os.path.join(os.path.dirname(os.path.abspath(__file__)), "reference",
                        "recorded_losses.json")
STEPS = 20


class RecordedCase(harness.PenstockTest):
    def assert_recorded(self, steps):
        """The first `steps` losses are the recorded ones; returns them."""
        with open(RECORDED, encoding="utf-8") as file:
            recorded = json.load(file)
        self.assertEqual(len(recorded), STEPS)
        run = self.trained(make_config(dtype="fp32", micro_batches=2), "--seed", "7", steps=steps)
        losses = [row["loss"] for row in read_rows(run)]
        for step, (loss, expected) in enumerate(zip(losses, recorded[:steps], strict=True), start=1):
            self.assertLessEqual(abs(loss - expected), 1e-4 * expected, f"step {step}")
        return losses


class RecordedTest(RecordedCase):
    def test_20_steps_in_fp32_have_the_losses_that_were_recorded_on_the_cpu(self):
        losses = self.assert_recorded(STEPS)
        self.assertLess(losses[-1], losses[0] - 0.1, "the model must learn, or this shows little")


if __name__ == "__main__":
    harness.main()
