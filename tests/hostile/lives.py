"""Runs whose commands are killed at any moment, and what must hold of them afterwards."""

import json
import os
import random
import re
import shutil
import struct
import subprocess
import time
from typing import Any

import base_set
import state_bytes
from base_set import TRAIN

STEPS = 16
ROW = ("step", "loss", "grad_norm", "lr", "loss_scale", "skipped", "tokens")
CALLS = (
    "pwrite64",
    "io_uring_enter",
    "fdatasync",
    "fsync",
    "ftruncate",
    "fallocate",
    "mkdirat",
    "mkdir",
    "rename",
    "renameat2",
    "unlink",
    "unlinkat",
    "rmdir",
)
Weights = bytes


class Lost(Exception):
    """Something was lost; says what."""


def config_of(variant: str) -> dict[str, Any]:
    """One that survives kills."""
    config = base_set.config_of(variant)
    config["penstock"]["durable"] = True
    return config


def weights_in(folder: str) -> Weights:
    """An export's file of weights."""
    with open(os.path.join(folder, "model.safetensors"), "rb") as file:
        return file.read()


def rows_of(run: str) -> list[list[Any]]:
    """What of the rows no kill may change."""
    with open(os.path.join(run, "metrics.jsonl"), encoding="utf-8") as file:
        return [[json.loads(line)[key] for key in ROW] for line in file]


class Undisturbed:
    """An undisturbed run of each variant: its rows, and its weights after every step."""

    def __init__(self, program: str, folder: str) -> None:
        self.folder = folder
        self.rows: dict[str, list[list[Any]]] = {}
        self.weights: dict[str, list[Weights]] = {}
        for variant in base_set.VARIANTS:
            case = os.path.join(folder, variant)
            os.makedirs(case)
            base_set.write_inputs(case, variant)
            base_set.write_json(os.path.join(case, "config.json"), config_of(variant))
            self.weights[variant] = []
            for step in range(STEPS + 1):
                resume = ["--resume"] if step else []
                base_set.run(program, case, *TRAIN, "--steps", str(step), *resume)
                base_set.run(program, case, "export", "run", "--to", f"export{step}")
                self.weights[variant].append(weights_in(os.path.join(case, f"export{step}")))
            self.rows[variant] = rows_of(os.path.join(case, "run"))


class Life:
    """One run from its first step to clean, its commands killed; raises Lost."""

    def __init__(self, program: str, whole: Undisturbed, rng: random.Random, folder: str) -> None:
        self.program, self.whole, self.rng = program, whole, rng
        self.variant = rng.choice(base_set.VARIANTS)
        self.folder = folder
        self.run = os.path.join(folder, "run")
        self.kills = 0
        self.history: list[str] = []
        self.committed: int | None = None  # the newest step that is known to be
        self.snapshots: dict[str, int] = {}
        self.names = 0
        self.loss = ""
        os.makedirs(folder)
        base_set.write_inputs(folder, self.variant)
        base_set.write_json(os.path.join(folder, "config.json"), config_of(self.variant))

    def fail(self, what: str) -> None:
        """Ends the life."""
        raise Lost("\n  ".join([f"{what}, in {self.folder} ({self.variant}) after", *self.history]))

    def state_file(self) -> str | None:
        """The one that commits are written to; None where run.json does not say it yet."""
        try:
            with open(os.path.join(self.run, "run.json"), encoding="utf-8") as file:
                return os.path.join(self.run, json.load(file)["state"]["ranks"][0]["paths"][0])
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def written(self) -> int | None:
        """The step of the newest whole commit in the file, which a training may be writing to."""
        path = self.state_file()
        try:
            with open(path or "", "rb") as file:
                state = state_bytes.State(file.read())
            whole = [place for place in state.commits if state.commit_holds(place)]
            return max((state.get("Q", place + 56) for place in whole), default=None)
        except (OSError, ValueError, struct.error):
            return None

    def start(self, arguments: list[str], inject: str = "") -> "subprocess.Popen[str]":
        """A command; `inject` is for strace."""
        strace = ["strace", "-f", "-qqq", "-o", "/dev/null", "-e", inject] if inject else []
        return subprocess.Popen(
            [*strace, self.program, *arguments],
            cwd=self.folder,
            env=base_set.program_environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def whole_command(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        """A command that is not killed."""
        with self.start(list(arguments)) as process:
            out, err = process.communicate(timeout=60)
        return subprocess.CompletedProcess(arguments, process.returncode, out, err)

    def must(self, *arguments: str) -> str:
        """One that must succeed; what it prints."""
        done = self.whole_command(*arguments)
        if done.returncode != 0:
            self.fail(f"penstock {' '.join(arguments)}: exit code {done.returncode}: {done.stderr}")
        return done.stdout

    def killed(self, arguments: list[str], seconds: float) -> tuple[bool, str]:
        """Kills a command at a random moment, or at one of its calls. Whether it came to that; else
        it must have succeeded. With what it printed."""
        inject = ""
        if self.rng.random() < 0.2:
            call, number = self.rng.choice(CALLS), int(self.rng.expovariate(0.15)) + 1
            inject = f"inject={call}:signal=SIGKILL:when={number}"
        with self.start(arguments, inject) as process:
            deadline = time.monotonic() + (60 if inject else self.rng.uniform(0, seconds))
            try:
                out, err = process.communicate(timeout=deadline - time.monotonic())
            except subprocess.TimeoutExpired:
                if inject:
                    process.kill()
                    self.fail(f"penstock {' '.join(arguments)} does not end")
                before = self.written() if arguments[0] == "train" else None
                process.kill()
                out, err = process.communicate()
                if before is not None and "--resume-from" not in arguments:
                    self.committed = max(before, self.committed or 0)
        was = process.returncode in (-9, 137)
        self.history.append(
            f"penstock {' '.join(arguments)}: {'killed ' + inject if was else 'ended'}"
        )
        if not was and process.returncode != 0:
            self.fail(f"exit code {process.returncode}: {err}")
        self.kills += was
        return was, out

    def train(self, *more: str) -> None:
        """Towards a later step."""
        to = min(STEPS, (self.committed or 0) + self.rng.randint(1, 12))
        was_killed, _ = self.killed([*TRAIN, "--steps", str(to), *more], 0.5)
        if not was_killed:
            self.committed = to
        self.check_state()

    def go_back(self) -> None:
        """To a snapshot: until the state is moved, the run is where it was."""
        name, step = self.rng.choice(sorted(self.snapshots.items()))
        self.committed = min(step, self.committed or 0)
        self.train("--resume-from", name)

    def snapshot(self) -> None:
        """Of a run that is not trained, or of one that is, whichever of the two is killed."""
        self.names += 1
        name = f"s{self.names}"
        if self.rng.random() < 0.5 and self.committed is not None and self.committed < STEPS:
            training = self.start([*TRAIN, "--steps", str(STEPS), "--resume"])
            time.sleep(self.rng.uniform(0, 0.3))
            try:
                self.take_snapshot(name, may_fail=True)
            finally:
                if self.rng.random() < 0.7:
                    time.sleep(self.rng.uniform(0, 0.1))
                    self.committed = max(self.written() or 0, self.committed)
                    training.kill()
                    self.kills += 1
                training.communicate(timeout=60)
                self.history.append("the training beside it was killed or ended")
        else:
            self.take_snapshot(name, may_fail=False)
        self.check_state()

    def take_snapshot(self, name: str, may_fail: bool) -> None:
        """Notes it where it is announced."""
        try:
            was_killed, out = self.killed(["snapshot", "run", name], 0.3)
        except Lost:
            # The training may have ended in between; whether it is right shows in what follows.
            if not may_fail:
                raise
            return
        if was_killed:
            return
        found = re.match(r"step (\d+) of ", out)
        if found is None:
            self.fail(f"snapshot said {out}")
        else:
            self.snapshots[name] = int(found[1])

    def export(self) -> None:
        """To a folder of its own."""
        self.names += 1
        was_killed, _ = self.killed(["export", "run", "--to", f"export{self.names}"], 0.2)
        if not was_killed:
            self.compare_weights(f"export{self.names}", self.committed or 0)

    def compare_weights(self, folder: str, step: int) -> None:
        """With those of the undisturbed run."""
        if weights_in(os.path.join(self.folder, folder)) != self.whole.weights[self.variant][step]:
            self.fail(f"{folder} has other weights than step {step}")
        shutil.rmtree(os.path.join(self.folder, folder))

    def check_state(self) -> None:
        """The newest commit is whole and not older than it was; every snapshot is what it was."""
        if self.state_file() is None and self.committed is None:
            return
        done = self.whole_command("inspect", "run")
        if done.returncode == 0:
            step = int(re.findall(r"(?m)^committed step +(\d+)$", done.stdout)[0])
            if step < (self.committed or 0):
                self.fail(f"step {self.committed} was committed, and now it is {step}")
            self.committed = step
        elif self.committed is not None:
            self.fail(f"step {self.committed} was committed, and now: {done.stderr}")
        if self.committed is not None:
            self.check_snapshots()
        if self.committed is not None and self.rng.random() < 0.3:
            self.must("export", "run", "--to", "check")
            self.compare_weights("check", self.committed)

    def check_snapshots(self) -> None:
        """All are listed with their steps; one of them is read."""
        listed = dict(re.findall(r"(?m)^(\S+) +step (\d+) ", self.must("snapshots", "run")))
        for name, step in self.snapshots.items():
            if listed.get(name) != str(step):
                self.fail(f"snapshot {name} of step {step} is now {listed.get(name)}")
        # One whose command was killed may be there, and then it is whole.
        self.snapshots = {name: int(step) for name, step in listed.items()}
        if self.snapshots:
            name = self.rng.choice(sorted(self.snapshots))
            self.must("inspect", f"run/snapshots/{name}")
            self.must("export", f"run/snapshots/{name}", "--to", "check")
            self.compare_weights("check", self.snapshots[name])

    def finish(self) -> None:
        """Resumes to the last step with undisturbed rows, then cleans, killed as well."""
        self.must(*TRAIN, "--steps", str(STEPS), "--resume")
        self.committed = STEPS
        if rows_of(self.run) != self.whole.rows[self.variant]:
            self.fail("the rows are not those of an undisturbed run")
        self.must("export", "run", "--to", "check")
        self.compare_weights("check", STEPS)
        was_killed = True
        while was_killed and os.path.exists(self.run):
            was_killed, _ = self.killed(["clean", "run", "--yes"], 0.1)
        self.check_nothing_is_left()

    def check_nothing_is_left(self) -> None:
        """Of a run that was cleaned."""
        left = [
            name
            for folder in ("nvme", "nvme2")
            for name in os.listdir(os.path.join(self.folder, folder))
        ]
        if left or os.path.exists(self.run):
            self.fail(f"clean has left {left or 'RUN'}")

    def begin(self) -> None:
        """The first training; where it was killed before its first commit, it begins anew."""
        while self.committed is None:
            if os.path.exists(self.run):
                done = self.whole_command(*TRAIN, "--steps", "1", "--resume")
                if done.returncode == 0:
                    self.check_state()
                    return
                if done.returncode != 2 or "no commit" not in done.stderr:
                    self.fail(f"no training after a kill: {done.stderr}")
                if "begins it anew" in done.stderr and self.rng.random() < 0.5:
                    self.train()
                    continue
                if os.path.exists(os.path.join(self.run, "run.json")):
                    self.must("clean", "run", "--yes")
                else:
                    shutil.rmtree(self.run)  # as the message says
                self.check_nothing_is_left()
            self.train()

    def live(self, commands: int) -> None:
        """So many commands, then the end; the folder is removed."""
        self.begin()
        for _ in range(commands):
            choices = [self.snapshot, self.export]
            if self.committed is not None and self.committed < STEPS:
                choices += [lambda: self.train("--resume")] * 4
            if self.snapshots:
                choices += [self.go_back] * 3
            self.rng.choice(choices)()
        self.finish()
        shutil.rmtree(self.folder)
