"""Runs the parts of a day, group after group, and makes sure that they end.

One thread. A part is a new session (setsid), and its processes have variables in their environment,
by which processes that forked away from it are found and ended with it:
PENSTOCK_DAY_WORK (the folder of the day), PENSTOCK_DAY_PART (its name) and PENSTOCK_DAY_RUNNER (the
runner's process). A second process, the guard, ends them all if the runner is killed.
"""

from __future__ import annotations

import dataclasses
import fcntl
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import IO

from day.folders import Places
from day.plan import LEFT_OUT, Group, Part
from day.report import Report

_RESERVE_S = 4.0  # for the last report
_REPORT_S = 10.0
_TICK_S = 0.05
_END_S = 5.0  # that processes take to end after SIGKILL; others are left


@dataclasses.dataclass
class Running:
    """A part that has started."""

    part: Part
    process: subprocess.Popen[bytes]
    begun: float
    limit: float


def _environment_of(pid: str) -> set[bytes]:
    try:
        return set(pathlib.Path("/proc", pid, "environ").read_bytes().split(b"\0"))
    except OSError:  # ended, or another user's
        return set()


def has_ended(pid: int) -> bool:
    """Whether all threads of a process have ended, and so what it had of a device is free: its
    environment is gone before."""
    try:
        text = pathlib.Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return True
    state, *fields = text.rpartition(")")[2].split()
    return state in "ZX" and int(fields[16]) <= 1  # its threads


def end_processes(*variables: str) -> int:
    """Ends all processes whose environment has these variables; returns how many are left."""
    wanted = {variable.encode() for variable in variables}
    until = time.monotonic() + _END_S
    found: set[int] = set()
    while True:
        found = {pid for pid in found if not has_ended(pid)}
        found |= {
            int(pid)
            for pid in os.listdir("/proc")
            if pid.isdigit() and int(pid) != os.getpid() and wanted <= _environment_of(pid)
        }
        if not found or time.monotonic() > until:
            return len(found)
        for pid in found:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        time.sleep(_TICK_S / 5)


class _Guard:
    """A process that ends what has these variables when this process is gone, however it ended."""

    def __init__(self, *variables: str) -> None:
        watched, self._held = os.pipe()  # no part inherits it
        self._pid = os.fork()
        if self._pid != 0:
            os.close(watched)
            return
        try:
            os.setsid()  # so that killing this program's group or session spares the guard
            for file in (1, 2):
                os.dup2(os.open(os.devnull, os.O_WRONLY), file)
            os.dup2(watched, 0)
            os.closerange(3, 256)
            os.read(0, 1)  # returns when the other end is closed
            end_processes(*variables)
        finally:
            os._exit(0)

    def end(self) -> None:
        os.close(self._held)
        os.waitpid(self._pid, 0)


class Runner:
    """Runs groups of parts.

    Args:
        kit: the folder of the bundle.
        places: where parts work.
        report: gets what is found.
        seconds: all that may pass until `run` returns.
    """

    def __init__(self, kit: pathlib.Path, places: Places, report: Report, seconds: float) -> None:
        self._kit = kit
        self._places = places
        self._report = report
        self._begun = time.monotonic()
        self._seconds = seconds
        self._running: list[Running] = []
        self._stopped = 0
        self._reported = 0.0
        self._cuda: dict[str, str] | str | None = None

    def run(self, groups: list[Group]) -> int:
        """Returns the program's exit code."""
        self._places.work.mkdir(parents=True, exist_ok=True)
        with open(self._places.work / "lock", "w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                print(f"gpu-day: error: another one works in {self._places.work}", file=sys.stderr)
                return 2
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                signal.signal(number, self._stop)
            end_processes(self._tag())  # what one that was killed has left
            self._clear()
            self._report.begin(groups, self._seconds)
            guard = _Guard(self._tag(), f"PENSTOCK_DAY_RUNNER={os.getpid()}")
            self._all(groups)
            guard.end()
            self._report.write(self._now(), final=True)
        print(self._report.summary(self._now()), flush=True)
        if self._stopped:
            return 128 + self._stopped
        return 1 if self._report.failed() else 0

    def _all(self, groups: list[Group]) -> None:
        for group in groups:
            if group.quiet:
                self._wait(lambda: not self._running)
            if self._stopped:
                break
            for part in group.parts:
                self._start(part)
            self._wait(lambda: all(one.part.beside for one in self._running))
            self._write()
        self._wait(lambda: not self._running)

    def _stop(self, number: int, _frame: object) -> None:
        self._stopped = number

    def _now(self) -> float:
        """Seconds since the program began."""
        return time.monotonic() - self._begun

    def _tag(self) -> str:
        return f"PENSTOCK_DAY_WORK={self._places.work}"

    def _clear(self) -> None:
        for folder in (self._places.logs, *self._scratch_folders("")):
            shutil.rmtree(folder, ignore_errors=True)
        self._places.logs.mkdir(parents=True)

    def _scratch_folders(self, name: str) -> list[pathlib.Path]:
        """Of a part, or above those of all parts."""
        roots = [self._places.work / "scratch"]
        if self._places.drive is not None:
            roots.append(self._places.drive / "drive")
        return [root / name if name else root for root in roots]

    def _start(self, part: Part) -> None:
        limit = min(part.limit, self._seconds - _RESERVE_S - self._now())
        if limit < part.least:
            self._report.left_out(part, f"no time: it needs {part.least:g} s at least")
            return
        environment = self._environment(part, limit)
        if isinstance(environment, str):
            self._report.failed_to_start(part, environment)
            return
        log: IO[bytes]
        with open(self._places.logs / part.name, "wb") as log:
            try:
                process = subprocess.Popen(
                    [self._filled(word, part, limit) for word in part.command],
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    stdin=subprocess.DEVNULL,
                    start_new_session=True,
                    env=environment,
                )
            except OSError as error:
                self._report.failed_to_start(part, f"{error.filename}: {error.strerror}")
                return
        self._running.append(Running(part, process, self._now(), limit))
        self._report.started(part)

    def _filled(self, word: str, part: Part, limit: float) -> str:
        """A word of a command with what is only known now."""
        scratch, *drive = self._scratch_folders(part.name)
        word = word.replace("{scratch}", str(scratch)).replace(
            "{seconds}", f"{max(1, limit - 5):.0f}"
        )
        return word.replace("{drive}", str(drive[0]) if drive else str(scratch))

    def _environment(self, part: Part, limit: float) -> dict[str, str] | str:
        """Returns a part's environment, or why it cannot have one."""
        scratch, *drive = self._scratch_folders(part.name)
        for folder in (scratch, *drive):
            folder.mkdir(parents=True, exist_ok=True)
        environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
        if part.cuda:
            found = self._find_cuda()
            if isinstance(found, str):
                return found
            environment.update(found)
        paths = [self._kit / name for name in ("", "parts", "tests", "python")]
        if "PYTHONPATH" in os.environ:
            paths.insert(0, pathlib.Path(os.environ["PYTHONPATH"]))
        paths.append(self._places.work / "site")
        environment.update(
            PYTHONPATH=":".join(map(str, paths)),
            PENSTOCK_DAY_WORK=str(self._places.work),
            PENSTOCK_DAY_PART=part.name,
            PENSTOCK_DAY_RUNNER=str(os.getpid()),
            PENSTOCK_DAY_OUT=str(self._report.out),
            PENSTOCK_DAY_SCRATCH=str(scratch),
            PENSTOCK_DAY_SECONDS=f"{limit:.1f}",
        )
        if drive:
            environment["PENSTOCK_DAY_DRIVE"] = str(drive[0])
        environment.update(part.environment)
        return environment

    def _find_cuda(self) -> dict[str, str] | str:
        """Returns the variables with which our programs find CUDA's libraries, or what is missing."""
        if self._cuda is None:
            self._cuda = self._look_for_cuda()
        return self._cuda

    def _look_for_cuda(self) -> dict[str, str] | str:
        script = 'source "$0" && printf "%s\\n%s\\n" "$LD_LIBRARY_PATH" "$PATH"'
        try:
            done = subprocess.run(
                ["bash", "-c", script, str(self._kit / "find-cuda")],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=30,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return f"find-cuda: {error}"
        if done.returncode != 0:
            return done.stderr.strip() or f"find-cuda: exit code {done.returncode}"
        library_path, path = done.stdout.splitlines()[-2:]
        return {"LD_LIBRARY_PATH": library_path, "PATH": path}

    def _wait(self, done: Callable[[], bool]) -> None:
        """Until done(), while parts are ended in time and the report is kept up to date."""
        while True:
            for one in list(self._running):
                self._look_at(one)
            if done():
                return
            if self._now() - self._reported > _REPORT_S:
                self._write()
            time.sleep(_TICK_S)

    def _look_at(self, one: Running) -> None:
        code = one.process.poll()
        took = self._now() - one.begun
        if code is None and not self._stopped and took < one.limit:
            return
        # First by name, as these are waited for: the next part wants their memory of the device.
        left = end_processes(self._tag(), f"PENSTOCK_DAY_PART={one.part.name}")
        try:
            os.killpg(one.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        one.process.wait()
        self._running.remove(one)
        for folder in self._scratch_folders(one.part.name):
            shutil.rmtree(folder, ignore_errors=True)
        if code == 0:
            self._report.ended(one.part, took)
        elif code == LEFT_OUT:
            self._report.ended_without(one.part, took)
        elif code is not None:
            self._report.ended_badly(one.part, took, f"exit code {code}")
        elif self._stopped:
            self._report.ended_badly(one.part, took, "gpu-day was told to end")
        else:
            self._report.ended_badly(one.part, took, f"took more than {one.limit:.0f} s")
        if left:
            self._report.note(f"{one.part.name}: {left} processes do not end")

    def _write(self) -> None:
        self._reported = self._now()
        self._report.write(self._reported)
