"""Runs of several ranks, of which one or all are killed at any moment, and what must hold then.

The ranks are processes that find each other by RANK and WORLD_SIZE. Those that are not killed end
in time, with exit code 3 and a line that names who was. Each start has another number of ranks, and
the run must end with the rows and weights of one undisturbed rank.
"""

import dataclasses
import os
import random
import re
import shutil
import socket
import subprocess
import threading
import time
from typing import Any

import base_set
import lives
from base_set import TRAIN

STEPS = 48
# Of a step, which 1, 2, 3 and 4 ranks divide among them.
MICRO_BATCHES = 12
# Survivors have ended so long after a kill.
WITHIN_S = 5
# Against hanging.
TIMEOUT_S = 120
VARIANTS = ("nvme", "host", "resident")


def config_of(variant: str) -> dict[str, Any]:
    """One that any number of ranks can train; paths are relative to the folder."""
    config = base_set.config_of("host" if variant == "resident" else variant)
    config["train_batch_size"] = MICRO_BATCHES
    config["train_micro_batch_size_per_gpu"] = 1
    del config["gradient_accumulation_steps"]
    if variant == "resident":
        config["zero_optimization"] = {"stage": 1}
    config["penstock"]["durable"] = True
    return config


class Ports:
    """Ports below those that the kernel gives away, each once."""

    def __init__(self) -> None:
        self.mutex = threading.Lock()
        self.next = 10000 + os.getpid() % 200 * 50

    def take(self) -> int:
        """A port without a listener."""
        with self.mutex:
            while True:
                self.next += 1
                with socket.socket() as probe:
                    if probe.connect_ex(("127.0.0.1", self.next)) != 0:
                        return self.next


class Undisturbed:
    """An undisturbed run of each variant on one rank: its rows and its last weights."""

    def __init__(self, program: str, folder: str) -> None:
        self.rows: dict[str, list[list[Any]]] = {}
        self.weights: dict[str, lives.Weights] = {}
        for variant in VARIANTS:
            case = os.path.join(folder, variant)
            os.makedirs(case)
            base_set.write_inputs(case, "host")
            base_set.write_json(os.path.join(case, "config.json"), config_of(variant))
            base_set.run(program, case, *TRAIN, "--steps", str(STEPS))
            base_set.run(program, case, "export", "run", "--to", "export")
            self.weights[variant] = lives.weights_in(os.path.join(case, "export"))
            self.rows[variant] = lives.rows_of(os.path.join(case, "run"))


@dataclasses.dataclass
class Rank:
    """A process, and what it has written to stderr so far."""

    process: "subprocess.Popen[str]"
    lines: list[str]
    reader: threading.Thread
    spoke: threading.Event  # it has written something

    def errors(self) -> list[str]:
        """Once it has ended."""
        self.reader.join()
        return [line for line in self.lines if line.startswith("penstock: error: ")]


class RankLife:
    """One run from its first step to its last, its ranks killed; raises lives.Lost."""

    def __init__(
        self,
        program: str,
        whole: Undisturbed | None,
        ports: Ports,
        rng: random.Random,
        folder: str,
        most_ranks: int,
    ) -> None:
        self.program, self.whole, self.ports, self.rng = program, whole, ports, rng
        self.folder, self.most_ranks = folder, most_ranks
        self.variant = rng.choice(VARIANTS)
        self.run = os.path.join(folder, "run")
        self.environment: dict[str, str] = {}  # of the ranks, beside what they need
        self.kills = 0
        self.slowest_s = 0.0  # of the survivors, from the kill to their end
        self.history: list[str] = []
        self.committed: int | None = None
        self.loss = ""
        os.makedirs(folder)
        base_set.write_inputs(folder, "host")
        base_set.write_json(os.path.join(folder, "config.json"), config_of(self.variant))

    def fail(self, what: str) -> None:
        """Ends the life."""
        raise lives.Lost(
            "\n  ".join([f"{what}, in {self.folder} ({self.variant}) after", *self.history])
        )

    def start(self, ranks: int) -> list[Rank]:
        """A training towards the last step."""
        port = self.ports.take()
        resume = ["--resume"] if self.committed is not None else []
        started = []
        for number in range(ranks):
            process = subprocess.Popen(
                [self.program, *TRAIN, "--steps", str(STEPS), *resume],
                cwd=self.folder,
                env={
                    **base_set.program_environment(),
                    **self.environment,
                    "RANK": str(number),
                    "WORLD_SIZE": str(ranks),
                    "MASTER_ADDR": "127.0.0.1",
                    "MASTER_PORT": str(port),
                },
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
            )
            lines: list[str] = []
            spoke = threading.Event()
            reader = threading.Thread(target=self.read, args=(process, lines, spoke))
            reader.start()
            started.append(Rank(process, lines, reader, spoke))
        return started

    @staticmethod
    def read(process: "subprocess.Popen[str]", lines: list[str], spoke: threading.Event) -> None:
        """Until the process ends."""
        assert process.stderr is not None
        for line in process.stderr:
            lines.append(line)
            spoke.set()
        spoke.set()

    def command(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        """One that is not killed."""
        return subprocess.run(
            [self.program, *arguments],
            cwd=self.folder,
            env=base_set.program_environment(),
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )

    def must(self, *arguments: str) -> None:
        """One that must succeed."""
        done = self.command(*arguments)
        if done.returncode != 0:
            self.fail(f"penstock {' '.join(arguments)}: exit code {done.returncode}: {done.stderr}")

    def killed_start(self) -> None:
        """Starts ranks and kills one or all of them at a random moment after they have met: ranks
        that still wait for one that is gone do so for minutes, and rightly."""
        ranks = self.rng.randint(2, self.most_ranks)
        started = self.start(ranks)
        try:
            if not started[0].spoke.wait(TIMEOUT_S):
                self.fail("the ranks do not meet")
            time.sleep(self.rng.uniform(0, 1.0))
            victims = list(range(ranks)) if self.rng.random() < 0.25 else [self.rng.randrange(ranks)]
            running = started[victims[0]].process.poll() is None
            for victim in victims:
                started[victim].process.kill()
            self.kills += running
            self.history.append(f"{ranks} ranks, killed {victims}")
            self.check_survivors(started, victims, running)
        finally:
            self.end(started)

    @staticmethod
    def end(started: list[Rank]) -> None:
        """Kills those that still run, and frees what all have taken."""
        for rank in started:
            rank.process.kill()
            rank.process.wait()
            rank.reader.join()
            assert rank.process.stderr is not None
            rank.process.stderr.close()

    def check_survivors(self, started: list[Rank], victims: list[int], running: bool) -> None:
        """They end in time, and say who was killed; or the training was over."""
        begin = time.monotonic()
        for number, rank in enumerate(started):
            if number in victims:
                continue
            try:
                rank.process.wait(WITHIN_S - (time.monotonic() - begin))
            except subprocess.TimeoutExpired:
                self.fail(f"rank {number} goes on for {WITHIN_S} s after a kill")
        survivors = [rank for number, rank in enumerate(started) if number not in victims]
        if not survivors:
            return
        self.slowest_s = max(self.slowest_s, time.monotonic() - begin)
        codes = [rank.process.returncode for rank in survivors]
        errors = [line for rank in survivors for line in rank.errors()]
        if codes == [0] * len(codes) and not errors:
            if running and not self.ended_whole():
                self.fail(f"rank {victims} was killed, and the others say that all is done")
            return
        if codes != [3] * len(codes):
            self.fail(f"exit codes {codes} after a kill of {victims}: {errors}")
        speakers = len(survivors) if victims == [0] else 1
        if len(errors) != speakers:
            self.fail(f"{len(errors)} lines after a kill of {victims}: {errors}")
        for line in errors:
            if not re.match(rf"penstock: error: rank {victims[0]} \(host \S+, pid \d+\) ended", line):
                self.fail(f"after a kill of {victims}: {line}")

    def ended_whole(self) -> bool:
        """Whether the last step is committed, so that a rank that was killed had done its part."""
        return self.committed_step(self.command("inspect", "run")) == STEPS

    @staticmethod
    def committed_step(inspected: "subprocess.CompletedProcess[str]") -> int | None:
        """What inspect says."""
        if inspected.returncode != 0:
            return None
        return int(re.findall(r"(?m)^committed step +(\d+)$", inspected.stdout)[0])

    def check_state(self) -> None:
        """What was committed is there, whole; where nothing was, the run is removed."""
        inspected = self.command("inspect", "run")
        step = self.committed_step(inspected)
        if step is not None:
            if step < (self.committed or 0):
                self.fail(f"step {self.committed} was committed, and now it is {step}")
            self.committed = step
        elif self.committed is not None:
            self.fail(f"step {self.committed} was committed, and now: {inspected.stderr}")
        elif os.path.exists(os.path.join(self.run, "run.json")):
            self.must("clean", "run", "--yes")
            self.check_nothing_is_left()
        else:
            shutil.rmtree(self.run, ignore_errors=True)  # as the message says
            self.check_nothing_is_left()

    def check_nothing_is_left(self) -> None:
        """Of a run that was cleaned."""
        left = os.listdir(os.path.join(self.folder, "nvme"))
        if left or os.path.exists(self.run):
            self.fail(f"clean has left {left or 'RUN'}")

    def finish(self) -> None:
        """To the last step as if nothing had been, then away."""
        assert self.whole is not None
        ranks = self.rng.randint(1, self.most_ranks)
        self.history.append(f"{ranks} ranks to the end")
        for number, rank in enumerate(self.start(ranks)):
            rank.process.wait(TIMEOUT_S)
            errors = rank.errors()
            assert rank.process.stderr is not None
            rank.process.stderr.close()
            if rank.process.returncode != 0:
                self.fail(f"rank {number} of {ranks}: {rank.process.returncode}: {errors}")
        if lives.rows_of(self.run) != self.whole.rows[self.variant]:
            self.fail("the rows are not those of an undisturbed run")
        self.must("export", "run", "--to", "check")
        weights = lives.weights_in(os.path.join(self.folder, "check"))
        if weights != self.whole.weights[self.variant]:
            self.fail("the weights are not those of an undisturbed run")
        self.must("clean", "run", "--yes")
        self.check_nothing_is_left()

    def live(self, kills: int) -> None:
        """So many kills, or as many as come before the last step; the folder is removed."""
        for _ in range(kills):
            self.killed_start()
            self.check_state()
            if self.committed == STEPS:
                break
        self.finish()
        shutil.rmtree(self.folder)
