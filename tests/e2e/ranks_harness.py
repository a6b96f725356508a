"""What tests of several ranks share: their processes, and what they must have trained."""
import contextlib
import os
import socket
import subprocess
import time

import harness
from harness import LONG, make_config, read_rows

MICRO_BATCHES = 24 if LONG else 12  # of a step, of all ranks together: 1, 2, 3 and 4 ranks divide them
STEPS = 20 if LONG else 6
SHAPE = ({"n_layer": 3, "n_embd": 64, "n_head": 4, "n_positions": 64, "vocab_size": 256} if LONG else
         {"n_layer": 2, "n_embd": 48, "n_head": 3})

# What comes before "train" for so many ranks.
STARTERS = {
    "mpirun": lambda ranks: ["mpirun", "--oversubscribe", "--allow-run-as-root", "-n", str(ranks),
                             harness.PROGRAM],
    "launch": lambda ranks: [harness.PROGRAM, "launch", "--ranks", str(ranks), "--"],
}


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class RanksTest(harness.PenstockTest):
    """Trainings whose ranks are processes of this machine, found by RANK and WORLD_SIZE."""

    def setUp(self):
        super().setUp()
        if harness.DEVICE != "cpu":
            self.skipTest("ranks on GPUs need one for each of them")
        self.model = self.make_model(**SHAPE)
        self.data = self.make_data()

    def config(self, dtype="bf16", param="nvme", optimizer="nvme", clip=1.0, overlap=True, stage=3,
               **override):
        config = make_config(dtype, clip, 1, param, optimizer, self.make_folder("nvme"), **override)
        del config["gradient_accumulation_steps"]
        config["train_micro_batch_size_per_gpu"] = 1
        config["train_batch_size"] = MICRO_BATCHES
        config["zero_optimization"]["stage"] = stage
        if stage < 3:
            del config["zero_optimization"]["offload_param"]
        config["bf16"]["check_grad_overflow"] = clip > 0
        config["penstock"].update(overlap=overlap, tile_elements=8192)
        return config

    def start(self, ranks, run, config, *more, steps=STEPS, model=None, data=None, only=None,
              under=None, folders=None, address="127.0.0.1", device_memory="16MiB",
              host_memory="64MiB"):
        """Starts one process for each rank. `config`, `model` and `data` are those of all ranks, or
        lists by rank. By rank: `only` has more arguments, `under` the commands under which some run,
        `folders` those in which they run. They meet at `address`."""
        port = str(free_port())

        def of(rank, given):
            return given[rank] if isinstance(given, list) else given

        for rank in range(ranks):
            environment = {**os.environ, "RANK": str(rank), "WORLD_SIZE": str(ranks),
                           "MASTER_ADDR": address, "MASTER_PORT": port}
            arguments = ["train", "--model", of(rank, model or self.model), "--data",
                         of(rank, data or self.data), "--config",
                         self.write(f"config.{rank}.json", of(rank, config)), "--out", run, "--steps",
                         str(steps), "--device-memory", device_memory, "--host-memory", host_memory, *more,
                         *(only or {}).get(rank, [])]
            yield subprocess.Popen([*(under or {}).get(rank, []), harness.PROGRAM, *arguments],
                                   text=True, env=environment,
                                   cwd=folders[rank] if folders else None,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    @contextlib.contextmanager
    def started(self, *arguments, **keywords):
        """The processes of the ranks, by rank; what of them is left at the end is killed."""
        programs = []
        try:
            programs.extend(self.start(*arguments, **keywords))
            yield programs
        finally:
            for program in programs:
                program.kill()
                program.communicate()

    def finish(self, programs):
        """[(exit code, stdout, error lines)], by rank."""
        outcomes = []
        for program in programs:
            stdout, stderr = program.communicate(timeout=harness.TIMEOUT_S)
            errors = [line for line in stderr.splitlines() if line.startswith("penstock: error: ")]
            outcomes.append((program.returncode, stdout, errors))
        return outcomes

    def assert_others_end(self, programs, victim, pattern, within):
        """All but the victim end with code 3; one line says why, or all say it where rank 0 is gone."""
        deadline = time.monotonic() + within
        for rank, program in enumerate(programs):
            if rank == victim:
                continue
            _, stderr = program.communicate(timeout=max(deadline - time.monotonic(), 0.1))
            errors = [line for line in stderr.splitlines() if line.startswith("penstock: error: ")]
            self.assertEqual(program.returncode, 3, f"rank {rank}: {stderr}")
            self.assertEqual(len(errors), 1 if rank == 0 or victim == 0 else 0, stderr)
            for line in errors:
                self.assertRegex(line, pattern)

    def check_commits_outlive(self, end, **penstock):
        """That a run goes on from its last commit when three ranks were ended by what befalls rank 1
        and, after that, rank 0: `end(programs, victim)`. `penstock`: keys that they have then."""
        run = self.path("run")
        config = self.config(penstock={"commit_every_steps": 2, **penstock})
        for victim in (1, 0):
            resume = ["--resume"] if os.path.exists(run) else []
            before = len(read_rows(run)) if resume else 0
            with self.started(3, run, config, *resume, steps=1000) as programs:
                self.wait_for_rows(run, before + 4, programs[0])
                end(programs, victim)
        steps = len(read_rows(run)) + 2
        self.trained_by(2, run, self.config(), "--resume", steps=steps)
        self.assert_same_numbers(self.alone(config, steps=steps), run)

    def trained_by(self, ranks, run, config, *more, by="environment", **keywords):
        """`by`: what starts them, the environment of each, mpirun, or penstock launch."""
        if by != "environment":
            return self.trained_under(STARTERS[by](ranks), run, config, *more, **keywords)
        with self.started(ranks, run, config, *more, **keywords) as programs:
            outcomes = self.finish(programs)
        for rank, (code, stdout, errors) in enumerate(outcomes):
            self.assertEqual((code, errors), (0, []), f"rank {rank} of {ranks}")
            self.assertEqual(stdout == "", rank > 0, "rank 0 alone speaks")
        return run

    def trained_under(self, starter, run, config, *more, steps=STEPS, device_memory="16MiB",
                      host_memory="64MiB"):
        done = subprocess.run(
            [*starter, "train", "--model", self.model, "--data", self.data,
             "--config", self.write("config.json", config), "--out", run, "--steps", str(steps),
             "--device-memory", device_memory, "--host-memory", host_memory, *more],
            capture_output=True, text=True, timeout=harness.TIMEOUT_S, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        return run

    def alone(self, config, *more, steps=STEPS, run=None, device_memory="16MiB",
              host_memory="64MiB"):
        return self.trained(config, *more, "--device-memory", device_memory, "--host-memory",
                            host_memory, steps=steps, model=self.model, data=self.data, out=run)

    def assert_same_numbers(self, a, b):
        self.assertEqual(self.numbers(a), self.numbers(b))
        self.assert_equal_bits(a, b)
