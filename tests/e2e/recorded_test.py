"""Every device computes the losses that were recorded on the CPU device, in fp32."""
import json
import os

import harness
from harness import make_config, read_rows

RECORDED = os.path.join(os.path.dirname(os.path.abspath(__file__)), "reference",
                        "recorded_losses.json")
STEPS = 20


class RecordedTest(harness.PenstockTest):
    def losses(self):
        run = self.trained(make_config(dtype="fp32", micro_batches=2), "--seed", "7", steps=STEPS)
        return [row["loss"] for row in read_rows(run)]

    def test_20_steps_in_fp32_have_the_losses_that_were_recorded_on_the_cpu(self):
        with open(RECORDED, encoding="utf-8") as file:
            recorded = json.load(file)
        losses = self.losses()
        self.assertEqual(len(losses), len(recorded))
        for step, (loss, expected) in enumerate(zip(losses, recorded), start=1):
            self.assertLessEqual(abs(loss - expected), 1e-4 * expected, f"step {step}")
        self.assertLess(losses[-1], losses[0] - 0.1, "the model must learn, or this shows little")


if __name__ == "__main__":
    harness.main()
