"""Sizes from a config, a model and the command line are planned before anything of that size is
taken: what cannot be is refused with one line, by a process that stays small."""
import os
import random
import re
import resource
import subprocess
import threading

import harness
from harness import make_config, merge

HUGE = (10**7, 10**12, 2**31 - 1, 2**31, 2**32, 2**62, 2**63 - 1, 2**63, 2**64, 10**30)
# For the program with its libraries and threads, and nothing of a config's size.
ADDRESS_SPACE = 4 << 30
RESIDENT = 256 << 20  # more than the program takes to say what it can do: CUDA's libraries are large
# A plan that walks through all that it plans would take hours.
HANG_S = 60

BATCH = ("gradient_accumulation_steps", "train_micro_batch_size_per_gpu", "train_batch_size")
MODEL = ("n_layer", "n_embd", "n_positions", "vocab_size", "n_head", "n_inner")


def resident(arguments, **streams):
    """(what a run of the program took at most, its exit code)"""
    program = subprocess.Popen(  # pylint: disable=consider-using-with
        [harness.PROGRAM, *arguments], **streams,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE)))
    hang = threading.Timer(HANG_S, program.kill)
    hang.start()
    _, status, usage = os.wait4(program.pid, 0)
    hang.cancel()
    program.returncode = os.waitstatus_to_exitcode(status)
    return usage.ru_maxrss * 1024, program.returncode


class SizesTest(harness.PenstockTest):
    def setUp(self):
        super().setUp()
        self.data = self.make_data()
        self.program, _ = resident(["--help"], stdout=subprocess.DEVNULL)

    def refused(self, config, *more, model=None, data=None):
        """A training that must be refused with one line, small and without RUN; returns the line."""
        self.runs += 1
        run, log = self.path(f"run{self.runs}"), self.path("log")
        arguments = ["train", "--model", model or self.make_model(), "--data", data or self.data,
                     "--config", self.write("config.json", config), "--out", run, "--steps", "1",
                     "--device", "cpu", *more]
        with open(log, "w", encoding="utf-8") as output:
            taken, code = resident(arguments, stdout=output, stderr=output)
        with open(log, encoding="utf-8") as lines:
            outcome = harness.Outcome(arguments, code, "", lines.read())
        self.assert_fails(outcome, 2)
        self.assertLess(taken, self.program + RESIDENT, str(outcome))
        self.assertFalse(os.path.exists(run))
        return outcome.errors[0]

    def config(self, **override):
        """Without a batch size: a test gives its own."""
        config = merge(make_config(param="cpu", optimizer="cpu"), override)
        if "train_batch_size" in override:
            del config["train_micro_batch_size_per_gpu"], config["gradient_accumulation_steps"]
        return config

    def test_batch_sizes(self):
        for key in BATCH:
            for value in HUGE:
                for home in ("device", "host"):
                    with self.subTest(key=key, value=value, home=home):
                        self.refused(self.config(**{key: value},
                                                 penstock={"activation_home": home}))

    def test_batch_sizes_whose_product_does_not_fit(self):
        line = self.refused(self.config(gradient_accumulation_steps=2**31 - 1,
                                        train_micro_batch_size_per_gpu=2**31 - 1))
        self.assertIn("more than 2^63 bytes", line)

    def test_many_micro_batches_are_refused_with_how_many_fit(self):
        # All that grows with their number is counted, so a model of a few bytes is refused as well.
        tiny = self.make_model(n_layer=1, n_embd=1, n_head=1, n_positions=1, vocab_size=256)
        config = self.config(gradient_accumulation_steps=2**31 - 1)
        line = self.refused(config, model=tiny)
        fitting = int(re.search(r"gradient_accumulation_steps of (\d+) and less fit", line)[1])
        self.assertGreater(fitting, 1)
        for option in ("--host-memory", "--device-memory"):
            line = self.refused(self.config(gradient_accumulation_steps=10**5), option, "1MiB",
                                model=tiny)
            self.assertRegex(line, rf"smallest that works is {option} \d+")

    def test_the_smallest_memory_for_many_micro_batches_trains(self):
        tiny = self.make_model(n_layer=1, n_embd=1, n_head=1, n_positions=1, vocab_size=256)
        config = self.config(gradient_accumulation_steps=5000, train_micro_batch_size_per_gpu=1)
        limits = [word for option in ("host-memory", "device-memory")
                  for word in (f"--{option}",
                               str(self.smallest(option, config, model=tiny, steps=1)))]
        self.trained(config, *limits, model=tiny, steps=1)

    def test_sizes_of_the_model(self):
        for key in MODEL:
            for value in HUGE + (2**13, 2**16, 2**20, 2**24):
                with self.subTest(key=key, value=value):
                    model = self.make_model(**{"n_head": 1, key: value})
                    self.refused(self.config(), "--host-memory", "1MiB", "--device-memory",
                                 "1MiB", "--sequence-length", "64", model=model)

    def test_tiles_that_are_too_small_for_the_model(self):
        model = self.make_model(n_layer=8, n_embd=32768, n_head=1)
        for home in ("cpu", "none"):
            config = merge(make_config(param=home, optimizer=home),
                           {"penstock": {"tile_elements": 4096}})
            line = self.refused(config, model=model)
            fitting = int(re.search(r"give (\d+)", line)[1])
            self.assertGreater(fitting, 4096)
            line = self.refused(merge(config, {"penstock": {"tile_elements": fitting}}),
                                "--host-memory", "1MiB", "--device-memory", "1MiB", model=model)
            self.assertNotIn("tile_elements", line)

    def test_keys_of_the_config_and_the_command_line(self):
        limits = ("--host-memory", "1MiB", "--device-memory", "1MiB")
        for value in HUGE:
            for override in ({"penstock": {"tile_elements": value}},
                             {"penstock": {"compute_threads": value}},
                             {"penstock": {"optimizer_threads": value}},
                             {"aio": {"block_size": value}}, {"aio": {"queue_depth": value}},
                             {"aio": {"thread_count": value}},
                             {"zero_optimization": {"sub_group_size": value}}):
                with self.subTest(override=override):
                    self.refused(self.config(**override), *limits)
            for option in ("--sequence-length", "--device-memory", "--host-memory"):
                other = () if option == "--sequence-length" else limits
                with self.subTest(option=option, value=value):
                    self.refused(self.config(gradient_accumulation_steps=2**31 - 1), *other,
                                 option, str(value))

    def test_any_sizes_together(self):
        source = random.Random(13)
        for _ in range(60):
            def size(most):
                return source.choice((source.randint(1, most), 2**source.randint(0, 64), most))
            heads = {"n_head": 1}
            model = {**heads, **{key: size(2**24) for key in MODEL if key != "n_head"}}
            config = self.config(gradient_accumulation_steps=size(2**31),
                                 train_micro_batch_size_per_gpu=size(2**31),
                                 penstock={"tile_elements": 4096 * size(2**28)})
            with self.subTest(model=model, config=config):
                self.refused(config, "--host-memory", "64KiB", "--device-memory", "64KiB",
                             model=self.make_model(**model))

    def test_a_sequence_that_no_memory_holds_is_refused_before_its_operators_are_made(self):
        model = self.make_model(n_layer=1, n_positions=2**24)
        data = self.path("long.txt")
        with open(data, "wb") as file:
            file.truncate(2**24 + 1)
        self.refused(self.config(train_micro_batch_size_per_gpu=64), model=model, data=data)


if __name__ == "__main__":
    harness.main()
