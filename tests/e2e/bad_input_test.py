"""What users and machines get wrong: exit code, one line that names it, nothing left behind."""
import glob
import os
import re
import struct
import subprocess

import harness
from harness import make_config, merge

CONFIG = make_config(param="cpu", optimizer="cpu")


class RefusalTest(harness.PenstockTest):
    """Refused before the first step: RUN is not there afterwards, so a repetition can use it."""

    def assert_refused(self, code, *fragments, config=None, more=(), **keywords):
        outcome, run = self.train(CONFIG if config is None else config, *more,
                                  **{"steps": 2, **keywords})
        self.assert_fails(outcome, code, *fragments)
        self.assertFalse(os.path.exists(run), "a refused run left its folder behind")


class ConfigTest(RefusalTest):
    def test_typos_name_the_path_and_the_nearest_key(self):
        for override, typo, meant in [
            ({"gradient_cliping": 1.0}, "gradient_cliping", "gradient_clipping"),
            ({"zero_optimization": {"stag": 3}}, "zero_optimization.stag", "stage"),
            ({"aio": {"que_depth": 8}}, "aio.que_depth", "queue_depth"),
            ({"penstock": {"aio": {"engin": "threads"}}}, "penstock.aio.engin", "engine"),
        ]:
            with self.subTest(typo=typo):
                self.assert_refused(2, typo, meant, config=merge(CONFIG, override))

    def test_duplicate_key(self):
        self.assert_refused(2, "bf16", config='{"train_batch_size": 2, "bf16": {}, "bf16": {}}')

    def test_wrong_type(self):
        self.assert_refused(2, "gradient_clipping",
                            config=merge(CONFIG, {"gradient_clipping": "one"}))

    def test_negative_learning_rate(self):
        self.assert_refused(2, "optimizer.params.lr",
                            config=merge(CONFIG, {"optimizer": {"params": {"lr": -1e-3}}}))

    def test_batch_sizes_that_contradict_each_other(self):
        self.assert_refused(2, "train_batch_size", config=merge(CONFIG, {"train_batch_size": 7}))

    def test_no_batch_size(self):
        self.assert_refused(2, "train_batch_size", config="{}")

    def test_broken_json(self):
        self.assert_refused(2, "config1.json", config='{"train_batch_size": 2,')
        self.assert_refused(2, "config2.json", config="")

    def test_missing_file(self):
        outcome = harness.penstock("train", "--model", self.make_model(),
                                   "--data", self.make_data(),
                                   "--config", self.path("no.json"), "--out", self.path("run"))
        self.assert_fails(outcome, 3, "--config", "no.json")

    def test_folder(self):
        self.assert_refused(2, "--config", "is a folder", more=["--config", self.folder])


class CommandLineTest(RefusalTest):
    def test_several_ranks(self):
        self.assert_refused(2, "WORLD_SIZE",
                            env={**os.environ, "WORLD_SIZE": "2", "RANK": "0"})

    def test_several_ranks_of_other_launchers(self):
        for variables in ({"PMI_SIZE": "2", "PMI_RANK": "0"}, {"PMIX_RANK": "1"},
                          {"MV2_COMM_WORLD_SIZE": "2", "MV2_COMM_WORLD_RANK": "0"},
                          {"FLUX_JOB_SIZE": "2", "FLUX_TASK_RANK": "1"}):
            with self.subTest(variables=variables):
                self.assert_refused(2, next(iter(variables)), env={**os.environ, **variables})

    def test_one_rank_of_a_launcher(self):
        one = {"PMI_SIZE": "1", "PMI_RANK": "0", "WORLD_SIZE": "1", "RANK": "0"}
        self.trained(CONFIG, steps=0, env={**os.environ, **one})

    def test_numbers_beyond_64_bits(self):
        for option in ("--seed", "--steps", "--sequence-length"):
            for text in ("18446744073709551616", "99999999999999999999", "-1", "abc"):
                with self.subTest(option=option, text=text):
                    self.assert_refused(2, f'{option}: "{text}"', "18446744073709551615",
                                        steps=None, more=[option, text])

    def test_names_that_are_empty(self):
        paths = {"--model": self.make_model(), "--data": self.make_data(),
                 "--config": self.write("c.json", CONFIG), "--out": self.path("run")}
        for option in (*paths, "--trace", "--resume-from"):
            with self.subTest(option=option):
                words = [word for pair in {**paths, option: ""}.items() for word in pair]
                self.assert_fails(harness.penstock("train", *words), 2, f'{option}: ""')
                self.assertFalse(os.path.exists(self.path("run")))
        for arguments in (["export", ""], ["inspect", ""], ["clean", ""], ["snapshots", ""],
                          ["compare", "", ""], ["snapshot", "", "x"], ["tune", "--nvme-path", ""]):
            with self.subTest(arguments=arguments):
                if arguments[0] == "export":
                    arguments = [*arguments, "--to", self.path("to")]
                self.assert_fails(harness.penstock(*arguments), 2, '""')

    def test_a_working_folder_that_is_gone(self):
        paths = {"--model": self.make_model(), "--data": self.make_data(),
                 "--config": self.write("c.json", CONFIG), "--out": self.path("run")}
        nvme = self.write("n.json", make_config(param="nvme", optimizer="nvme", nvme_path="nvme"))
        lines = [["train", *(word for pair in {**paths, **change}.items() for word in pair)]
                 for change in ({"--out": "run"}, {"--data": "data"}, {"--config": nvme})]
        lines += [["export", "run", "--to", "to"], ["inspect", "run"], ["clean", "run"],
                  ["compare", "a", "b"], ["snapshot", "run", "x"], ["snapshots", "run"],
                  ["tune", "--nvme-path", ".", "--out", "f", "--plot", "s"]]
        for line in lines:
            with self.subTest(line=line):
                gone = self.make_folder("gone")
                done = subprocess.run(["sh", "-c", 'cd "$1" && rmdir "$1" && shift && exec "$@"', "sh",
                                       gone, harness.PROGRAM, *line], capture_output=True, text=True,
                                      timeout=harness.TIMEOUT_S, check=False)
                outcome = harness.Outcome(line, done.returncode, done.stdout, done.stderr)
                named = "No such file or directory" if line[0] == "train" else ""
                self.assert_fails(outcome, 3, named)
                self.assertNotIn("unexpected failure", outcome.errors[0])
                self.assertFalse(os.path.exists(self.path("run")))

    def test_unknown_option_and_command(self):
        self.assert_refused(2, "--setps", more=["--setps", "3"])
        self.assert_fails(harness.penstock("trian"), 2, "trian")
        self.assert_fails(harness.penstock(), 2)

    def test_help_is_no_error(self):
        for arguments in (["--help"], ["train", "--help"], ["--version"]):
            outcome = harness.penstock(*arguments)
            self.assertEqual((outcome.code, outcome.stderr), (0, ""))
            self.assertIn("penstock", outcome.stdout)

    def test_no_cuda_device(self):
        if glob.glob("/dev/nvidia[0-9]*"):
            self.skipTest("this machine has one")
        self.assert_refused(3, "CUDA", "--device cpu", more=["--device", "cuda"])

    def test_run_that_exists(self):
        run = self.make_folder("taken")
        outcome, _ = self.train(CONFIG, out=run, steps=1)
        self.assert_fails(outcome, 2, "taken", "it is empty; remove it (rmdir), or name another folder")
        self.assertEqual(os.listdir(run), [])

    def test_paths_that_are_not_utf_8(self):
        # Relative ones: the message says them as they were given.
        folder = os.fsdecode(os.fsencode(self.folder) + b"/\xff")
        os.mkdir(folder)
        config = make_config(param="nvme", optimizer="nvme", nvme_path="relative")
        absolute = {"--model": self.make_model(), "--data": self.make_data(),
                    "--config": self.write("cpu.json", CONFIG), "--out": self.path("run")}
        for named, change in (("--data relative", {"--data": "relative"}),
                              ("--out relative", {"--out": "relative"}),
                              ("nvme_path relative",
                               {"--config": self.write("nvme.json", config)})):
            with self.subTest(named=named):
                options = {**absolute, **change}.items()
                outcome = harness.penstock("train", *(word for option in options for word in option),
                                           cwd=folder)
                self.assert_fails(outcome, 2, named, "UTF-8")
                self.assertEqual(os.listdir(folder), [])

    def test_a_run_that_was_moved_to_a_path_that_is_not_utf_8(self):
        model, data = self.make_model(), self.make_data()
        run = self.trained(CONFIG, steps=1, model=model, data=data)
        moved = os.fsdecode(os.fsencode(self.folder) + b"/\xff")
        os.mkdir(moved)
        os.rename(run, os.path.join(moved, "run"))
        outcome = harness.penstock("train", "--model", model, "--data", data, "--config",
                                   self.write("config.json", CONFIG), "--out", "run", "--resume",
                                   cwd=moved)
        self.assert_fails(outcome, 2, "--out run", "UTF-8")

    def test_sequence_longer_than_the_context(self):
        self.assert_refused(2, "--sequence-length 65", "64", more=["--sequence-length", "65"])


class ModelAndDataTest(RefusalTest):
    def test_missing_paths(self):
        self.assert_refused(3, "nowhere", model=self.path("nowhere"))
        self.assert_refused(3, "nowhere", data=self.path("nowhere"))

    def test_unknown_model_type(self):
        self.assert_refused(2, "mamba", model=self.make_model(model_type="mamba"))

    def test_data_shorter_than_a_row(self):
        self.assert_refused(2, "short.txt", data=self.write("short.txt", b"x" * 64))

    def test_epoch_without_a_whole_step(self):
        self.assert_refused(2, "1 row", data=self.write("row.txt", b"x" * 65), steps=None)

    def test_token_outside_the_vocabulary(self):
        tokens = [i % 256 for i in range(2000)]
        tokens[70:] = [300] * len(tokens[70:])
        data = self.write("tokens.bin", struct.pack(f"<{len(tokens)}H", *tokens))
        self.assert_refused(2, "300", "tokens.bin", data=data, more=["--data-order", "sequential"])

    def test_the_largest_token(self):
        data = self.write("tokens.u32", struct.pack("<I", 2**32 - 1) * 200)
        self.assert_refused(2, "4294967295", "tokens.u32", "vocabulary of 256", data=data)

    def weights(self):
        """A model folder with weights beside its config, and what they are."""
        run = self.trained(CONFIG, steps=0)
        tensors, folder = self.export(run)
        return tensors, folder, os.path.join(folder, "model.safetensors")

    def test_truncated_weights(self):
        _, folder, path = self.weights()
        for size in (os.path.getsize(path) - 1, 1000, 4, 0):
            with self.subTest(size=size):
                os.truncate(path, size)
                self.assert_refused(2, "model.safetensors", model=folder)

    def test_weights_of_a_wrong_shape(self):
        tensors, folder, path = self.weights()
        dtype, shape, data = tensors["transformer.h.1.mlp.c_fc.weight"]
        harness.write_safetensors(path, {**tensors,
                                         "transformer.h.1.mlp.c_fc.weight":
                                         (dtype, shape[::-1], data)})
        self.assert_refused(2, "h.1.mlp.c_fc.weight", model=folder)

    def test_missing_weight(self):
        tensors, folder, path = self.weights()
        del tensors["transformer.h.2.ln_1.bias"]
        harness.write_safetensors(path, tensors)
        self.assert_refused(2, "h.2.ln_1.bias", model=folder)


class NvmePathTest(RefusalTest):
    def nvme(self, path):
        return make_config(param="nvme", optimizer="nvme", nvme_path=path)

    def test_missing(self):
        self.assert_refused(3, "there is no folder", "no_such_folder", "create it",
                            config=self.nvme(self.path("no_such_folder")))

    def test_read_only(self):
        folder = self.make_folder("read_only")
        if os.geteuid() != 0:
            os.chmod(folder, 0o555)
            self.assert_refused(3, "read_only", config=self.nvme(folder))
            return
        with harness.mounted(folder, ["--bind", folder], ["-o", "remount,ro,bind"]):
            self.assert_refused(3, "read_only", config=self.nvme(folder))

    def test_too_full(self):
        folder = self.make_folder("small")
        with harness.mounted(folder, ["-t", "tmpfs", "-o", "size=1M", "none"]):
            self.assert_refused(3, "small", config=self.nvme(folder))
            self.assertEqual(os.listdir(folder), [])

    def test_memory_is_said(self):
        folder = self.make_folder("memory")
        notice = rf"(?m)^penstock: (nvme_path|--nvme-path) {re.escape(folder)} is on (\w+), .*memory"
        drive = self.nvme(self.make_folder("drive"))
        for kind in ("tmpfs", "ramfs"):
            outcome, run = self.train(drive, steps=1)
            self.assertNotIn("is on", outcome.stderr)
            with self.subTest(kind=kind), harness.mounted(folder, ["-t", kind, "none"]):
                outcome, _ = self.train(self.nvme(folder), steps=1)
                self.assertEqual(re.search(notice, outcome.stderr)[2], kind)
                outcome, _ = self.train(self.nvme(folder), "--resume", steps=2, out=run)
                self.assertRegex(outcome.stderr, notice)
                tune = harness.penstock("tune", "--nvme-path", folder, "--quick", "--size", "1MiB")
                self.assertRegex(tune.stderr, notice)
                outcome, _ = self.train(CONFIG, steps=1, out=os.path.join(folder, "run"))
                self.assertIn(f"the run's folder {folder}/run is on {kind}", outcome.stderr)

    def test_without_direct_io(self):
        folder = self.make_folder("no_direct")
        with harness.mounted(folder, ["-t", "ramfs", "none"]):
            self.assert_refused(3, "no_direct", "O_DIRECT", config=self.nvme(folder))
            self.assertEqual(os.listdir(folder), [])


class BudgetTest(RefusalTest):
    def assert_smallest(self, option, step, config):
        smallest = self.smallest(option, config, steps=2)
        self.trained(config, f"--{option}", str(smallest), steps=2)
        self.assert_refused(2, f"--{option} {smallest}", config=config,
                            more=[f"--{option}", str(smallest - step)])

    def test_the_smallest_that_works_works_and_one_block_less_is_refused(self):
        for dtype in ("fp32", "bf16"):
            for param, optimizer in (("none", "none"), ("cpu", "cpu"), ("nvme", "nvme")):
                with self.subTest(dtype=dtype, param=param):
                    config = make_config(dtype=dtype, param=param, optimizer=optimizer,
                                         nvme_path=self.make_folder("nvme"))
                    self.assert_smallest("device-memory", 256, config)
                    self.assert_smallest("host-memory", 256, config)

    def test_a_malformed_size_is_refused(self):
        self.assert_refused(2, "12MB", more=["--host-memory", "12MB"])


class DivergenceTest(harness.PenstockTest):
    def test_the_rows_are_kept_and_the_weights_with_which_it_began(self):
        nvme = self.make_folder("nvme")
        config = merge(make_config(param="nvme", optimizer="nvme", nvme_path=nvme),
                       {"optimizer": {"params": {"lr": 1e38}}})
        outcome, run = self.train(config, steps=100)
        self.assert_fails(outcome, 4, "not finite", "step 0 is committed")
        self.assertNotEqual(harness.read_rows(run), [])
        self.assertIn("step 0 of", harness.penstock("export", run, "--to", self.path("x")).stdout)
        self.assertFalse(os.path.exists(os.path.join(run, "summary.json")))


if __name__ == "__main__":
    harness.main()
