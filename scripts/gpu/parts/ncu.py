"""Where does a step's time go, and what limits our kernels?

ncu.py KEY=VALUE...     keys: those of training.Job

Nsight Compute with one metric, the time of every kernel, over one step of a few layers; then the
sections SpeedOfLight, LaunchStats and Occupancy of our own kernels in one layer with a small arena:
for each pass of these sections, ncu saves and restores the memory of the device.
"""

from __future__ import annotations

import collections
import csv
import dataclasses
import os
import pathlib
import shutil
import signal
import subprocess
import sys

import training
from said import leave_out, say, scratch, seconds_left, work

_SHOWN = 30
_SMALL = "4GiB"


def profile(options: list[str], command: list[str], log: pathlib.Path, seconds: float) -> str:
    """Runs a command under ncu; returns what was wrong ("": nothing)."""
    words = ["ncu", "--clock-control", "none", *options, "--csv", "--log-file", str(log), *command]
    # In a new session: ncu is a script that starts other processes, which would outlive it.
    with subprocess.Popen(
        words,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    ) as ncu:
        try:
            printed, _ = ncu.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(ncu.pid, signal.SIGKILL)
            return f"more than {seconds:.0f} s"
    if ncu.returncode != 0:
        text = printed + (log.read_text() if log.exists() else "")
        lines = [line for line in text.splitlines() if "error" in line.lower()]
        return lines[0] if lines else f"exit code {ncu.returncode}"
    return ""


def rows_of(log: pathlib.Path) -> list[list[str]]:
    """The table in a log of ncu, its head first."""
    if not log.exists():
        return []
    return list(csv.reader(x for x in log.read_text().splitlines() if x.startswith('"')))


def add_up(rows: list[list[str]]) -> tuple[dict[str, float], dict[str, int]]:
    """Milliseconds and launches of each kernel.

    The unit of a row's value is in the row, as ncu chooses it by the size of the value.
    """
    scale = {"ns": 1e-6, "nsecond": 1e-6, "us": 1e-3, "usecond": 1e-3, "ms": 1.0, "msecond": 1.0}
    head = rows[0]
    name, value, unit = (head.index(x) for x in ("Kernel Name", "Metric Value", "Metric Unit"))
    total: dict[str, float] = collections.defaultdict(float)
    count: dict[str, int] = collections.defaultdict(int)
    for row in rows[1:]:
        kernel = row[name][:100]
        total[kernel] += float(row[value].replace(",", "")) * scale[row[unit]]
        count[kernel] += 1
    return total, count


def main() -> int:
    if shutil.which("ncu") is None:
        leave_out("ncu is not on the PATH")
    job = training.Job.of(sys.argv[1:])
    job.steps = 1
    command = training.write_files(job, scratch())
    logs = work() / "logs"
    times, limits = logs / "ncu-times.csv", logs / "ncu-limits.csv"
    wrong = profile(
        ["--metrics", "gpu__time_duration.sum"],
        [*command, "--out", str(scratch() / "a")],
        times,
        seconds_left() * 0.5,
    )
    rows = rows_of(times)
    if len(rows) > 1:
        total, count = add_up(rows)
        for kernel in sorted(total, key=lambda kernel: -total[kernel])[:_SHOWN]:
            print(f"{total[kernel]:9.3f} ms {count[kernel]:5d} x {kernel}")
        say(name="ncu step", kernels=sum(count.values()), ms=round(sum(total.values()), 3))
    elif "LibraryNotLoaded" in wrong or "ERR_NVGPUCTRPERM" in wrong:
        leave_out(f"ncu cannot read this GPU's counters: {wrong}")
    if wrong:
        print(f"error: ncu, times: {wrong}")
    options = ["--kernel-name-base", "demangled", "-k", "regex:penstock"]
    options += ["--launch-count", "45", "--page", "raw"]
    for section in ("SpeedOfLight", "LaunchStats", "Occupancy"):
        options += ["--section", section]
    small = dataclasses.replace(job, layers=1, rows=min(2, job.rows), device_memory=_SMALL)
    command = training.write_files(small, scratch())
    also = profile(options, [*command, "--out", str(scratch() / "b")], limits, seconds_left())
    if also:
        print(f"error: ncu, limits: {also}")
    say(name="ncu limits", kernels=max(0, len(rows_of(limits)) - 2))
    return 1 if wrong or also else 0


if __name__ == "__main__":
    sys.exit(main())
