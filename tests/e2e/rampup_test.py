"""penstock.rampup_batch_size: steps of a batch that grows, and everything that must not change a bit of
them."""
import os

import harness
from harness import read_rows, read_summary
from ranks_harness import SHAPE, RanksTest

END = 12  # rows, and micro-batches


def batches(start, increment, samples, steps, end=END):
    """What the rule gives the first steps, in rows."""
    consumed, found = 0, []
    for _ in range(steps):
        increments = (end - start) // increment
        batch = start + increment * (consumed * increments // samples) if consumed < samples else end
        found.append(batch)
        consumed += batch
    return found


class RampupTest(RanksTest):
    def config(self, *args, ramp, **keywords):
        config = super().config(*args, **keywords)
        config["train_batch_size"] = END
        config["penstock"]["rampup_batch_size"] = ramp
        return config

    def rows_taken(self, run):
        """By each step."""
        tokens = [row["tokens"] for row in read_rows(run)]
        return [count // self.sequence for count in tokens]

    def setUp(self):
        super().setUp()
        self.sequence = {**harness.MODEL, **SHAPE}["n_positions"]

    def test_placements_and_ranks_have_the_same_bits(self):
        ramp, steps = [4, 4, 20], 7
        config = self.config(ramp=ramp)
        whole = self.alone(config, steps=steps)
        self.assertEqual(self.rows_taken(whole), batches(*ramp, steps))
        self.assertEqual(batches(*ramp, steps), [4, 4, 4, 8, 12, 12, 12])
        self.assertEqual(read_summary(whole)["config"]["penstock"]["rampup_batch_size"], ramp)
        self.assertEqual(read_summary(whole)["tokens"], 56 * self.sequence)
        on_device = self.config(ramp=ramp, param="none", optimizer="none",
                                penstock={"activation_home": "host"})
        self.assert_same_numbers(whole, self.alone(on_device, steps=steps))
        for ranks in (2, 4):
            with self.subTest(ranks=ranks):
                run = self.trained_by(ranks, self.path(f"of{ranks}"), config, steps=steps)
                self.assert_same_numbers(whole, run)

    def test_a_step_is_that_of_its_batch_without_rampup(self):
        # One micro-batch, whose gradients are added up in another way than several; and two. In fp32,
        # as rounding hides last bits.
        for batch in (1, 2):
            grown = self.alone(self.config("fp32", ramp=[batch, 1, 1000]), steps=4)
            constant = self.config("fp32", ramp=None)
            constant["train_batch_size"] = batch
            self.assert_same_numbers(grown, self.alone(constant, steps=4))

    def test_resume_within_the_ramp_is_the_undisturbed_run(self):
        ramp, steps = [2, 2, END + 8], 8
        run = self.alone(self.config(ramp=ramp), steps=2)
        self.trained_by(2, run, self.config(ramp=ramp), "--resume", steps=4)
        elsewhere = self.config(ramp=ramp, param="cpu", optimizer="cpu")
        self.alone(elsewhere, "--resume", run=run, steps=steps)
        taken = self.rows_taken(run)
        self.assertEqual(taken, batches(*ramp, steps))
        self.assertTrue(taken[1] < taken[2] < taken[3] < taken[4] <= taken[-1] == END, taken)
        self.assert_same_numbers(self.alone(self.config(ramp=ramp), steps=steps), run)

    def test_kills_within_the_ramp_change_no_bit(self):
        ramp = [2, 2, 400]
        config = self.config(ramp=ramp, penstock={"commit_every_steps": 1})
        run = self.path("run")
        for ranks in (1, 2):
            resume = ["--resume"] if os.path.exists(run) else []
            before = len(read_rows(run)) if resume else 0
            with self.started(ranks, run, config, *resume, steps=100000) as programs:
                self.wait_for_rows(run, before + 9, programs[0])
                for program in programs:
                    program.kill()
        steps = len(read_rows(run)) + 2
        self.alone(config, "--resume", run=run, steps=steps)
        self.assertEqual(self.rows_taken(run), batches(*ramp, steps))
        self.assert_same_numbers(self.alone(config, steps=steps), run)

    def test_an_epoch_has_the_whole_steps_of_the_ramp(self):
        data = self.make_data("epoch", 30 * self.sequence + 1)
        run = self.trained(self.config(ramp=[4, 4, 20]), "--device-memory", "16MiB", "--host-memory",
                           "64MiB", steps=None, model=self.model, data=data)
        self.assertEqual(self.rows_taken(run), [4, 4, 4, 8])

    def test_mistakes_are_refused(self):
        run = self.alone(self.config(ramp=[4, 4, 20]), steps=2)
        refusals = (
            ([4, 4], [], "expected null or [start, increment, samples]"),
            ([4, 3, 20], [], "no multiple of the increment 3"),
            ([END + 1, 1, 20], [], "a batch can only grow"),
            ([4, 4, 24], ["--resume"], "penstock.rampup_batch_size.2 is 24, was 20"),
            (None, ["--resume"], "penstock.rampup_batch_size.0 is not there, was 4"))
        for ramp, more, why in refusals:
            with self.subTest(ramp=ramp):
                outcome, _ = self.train(self.config(ramp=ramp), *more, steps=3, model=self.model,
                                        data=self.data, out=run if more else self.path("refused"))
                self.assert_fails(outcome, 2, why)
        with self.started(2, self.path("refused"), self.config(ramp=[5, 7, 20])) as programs:
            outcomes = self.finish(programs)
        self.assertEqual([code for code, _, _ in outcomes], [2, 2])
        self.assertIn("its batch of 5 rows is no multiple of train_micro_batch_size_per_gpu 1 * world "
                      "size 2 = 2", outcomes[0][2][0])


if __name__ == "__main__":
    harness.main()
