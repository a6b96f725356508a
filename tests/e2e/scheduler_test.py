"""OneCycle and LRRangeTest as a run has them: rates in its rows, betas that move with the steps, and
a resumed run that is the run that was not stopped. tests/zero has DeepSpeed's numbers."""
import json
import os

import harness
from harness import make_config, merge, read_rows, read_summary

STEPS = 12
CYCLE = {"cycle_min_lr": 1e-3, "cycle_max_lr": 5e-3, "cycle_first_step_size": 4,
         "decay_step_size": 2, "decay_lr_rate": 1.0, "decay_mom_rate": 0.01}
# Of step s, whose iteration is s - 2: up in four, down in four, then 1e-3 / (1 + interval).
RATES = [1e-3, 2e-3, 3e-3, 4e-3, 5e-3, 4e-3, 3e-3, 2e-3, 1e-3, 1e-3 / 1.5, 1e-3 / 2, 1e-3 / 2.5]


class SchedulerTest(harness.PenstockTest):
    def config(self, scheduler, params, **override):
        return make_config(nvme_path=self.make_folder("nvme"),
                           scheduler={"type": scheduler, "params": params}, **override)

    def assert_rates(self, run, expected):
        rates = [row["lr"] for row in read_rows(run)]
        self.assertEqual(len(rates), len(expected))
        for rate, right in zip(rates, expected):
            self.assertAlmostEqual(rate, right, delta=1e-12 * right)

    def resumed(self, run, config, *more, steps=STEPS):
        outcome, _ = self.train(config, "--resume", *more, steps=steps, out=run)
        self.assertEqual(outcome.code, 0, str(outcome))

    def test_a_cycle_that_is_cut_off_anywhere_is_the_whole_one_in_every_placement(self):
        whole = self.trained(self.config("OneCycle", CYCLE), steps=STEPS)
        self.assert_rates(whole, RATES)
        for param, optimizer, cut in (("cpu", "cpu", 3), ("nvme", "nvme", 9)):
            with self.subTest(optimizer):
                config = self.config("OneCycle", CYCLE, param=param, optimizer=optimizer)
                run = self.trained(config, steps=cut)
                self.resumed(run, config)
                self.assertEqual(self.numbers(run), self.numbers(whole))
                params = read_summary(run)["config"]["scheduler"]["params"]
                self.assertEqual(params["cycle_max_lr"], 5e-3)
                self.assertIsNone(params["cycle_second_step_size"])

    def test_the_betas_move_with_the_cycle_and_those_of_the_optimizer_do_not_count(self):
        def losses(params, betas):
            config = merge(self.config("OneCycle", merge(CYCLE, params)),
                           {"optimizer": {"params": {"betas": betas}}})
            run = self.trained(config, steps=5)
            return [row["loss"] for row in read_rows(run)]

        cycled = losses({}, [0.9, 0.999])
        self.assertEqual(cycled, losses({}, [0.5, 0.5]))
        self.assertNotEqual(cycled, losses({"cycle_momentum": False}, [0.9, 0.999]))
        # A cycle that stands still is the optimizer with these betas.
        still = {"cycle_min_mom": 0.75, "cycle_max_mom": 0.75}
        self.assertEqual(losses(still, [0.9, 0.999]),
                         losses({"cycle_momentum": False}, [0.75, 0.99]))

    def test_a_cycle_can_be_changed_on_the_way(self):
        config = self.config("OneCycle", CYCLE)
        run = self.trained(config, steps=5)
        self.resumed(run, config, "--change", "scheduler.params.cycle_max_lr=0.009", steps=8)
        self.assert_rates(run, RATES[:5] + [7e-3, 5e-3, 3e-3])
        changed = self.config("OneCycle", merge(CYCLE, {"cycle_max_lr": 0.009}))
        scheduler = {"type": "LRRangeTest", "params": {"lr_range_test_step_size": 4}}
        self.resumed(run, changed, "--change", "scheduler=" + json.dumps(scheduler), steps=10)
        self.assert_rates(run, RATES[:5] + [7e-3, 5e-3, 3e-3] + [1e-3 * 3, 1e-3 * 3.25])
        with open(os.path.join(run, "run.json"), encoding="utf-8") as file:
            self.assertEqual([change["step"] for change in json.load(file)["changes"]], [5, 8])

    def test_a_momentum_that_would_leave_its_range_is_refused_before_the_first_step(self):
        config = self.config("OneCycle", merge(CYCLE, {"decay_mom_rate": 0.1}))
        outcome, run = self.train(config, steps=STEPS)
        self.assert_fails(outcome, 2, "scheduler.params.decay_mom_rate: at optimizer step 12 the "
                                      "momentum is 1.035", "set the rate to 0, or train fewer")
        self.assertFalse(os.path.exists(run))


if __name__ == "__main__":
    harness.main()
