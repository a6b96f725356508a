"""Steps of `penstock train` on a GPT-2, with their times and memory.

train_steps.py NAME KEY=VALUE...     keys: those of training.Job
"""

from __future__ import annotations

import statistics
import sys

import training
from said import drive, leave_out, say, scratch, seconds_left

_SHOWN = ("step_s", "compute_s", "io_wait_s", "optimizer_s", "forward_s", "backward_s", "tflops")
_UNAVAILABLE = 3  # exit code: something of this build or machine is not there


def main() -> int:
    name, *words = sys.argv[1:]
    job = training.Job.of(words)
    if job.home == "nvme" and drive() is None:
        leave_out("no folder has O_DIRECT")
    job.seconds = min(job.seconds, seconds_left())
    wanted = job.steps
    job.steps += 1  # the last step would have the end of the run in it
    done = training.train(job, scratch(), enough=wanted)
    for row in done.rows:
        say(name=name, step=row["step"], **{key: row[key] for key in _SHOWN if key in row})
    no_cudnn = done.code == _UNAVAILABLE and "cudnn" in done.error.lower()
    if job.attention and not done.rows and no_cudnn:
        leave_out(f"attention {job.attention}: {done.error}")
    later = done.rows[2:] or done.rows
    if not later:
        print(done.error or "error: no step was made")
        return 1
    middle = {
        key: statistics.median(row[key] for row in later) for key in _SHOWN if key in later[0]
    }
    say(
        name=name,
        kind="train",
        done=True,
        home=job.home,
        seconds=middle["step_s"],
        tokens_per_s=round(job.rows * job.length * job.accumulate / middle["step_s"]),
        parameters=job.parameters(),
        steps=len(later),
        **middle,
    )
    if done.error:
        say(name=name, error=f"after {len(done.rows)} steps: {done.error}")
    return 0 if len(done.rows) >= min(wanted, 3) else 1


if __name__ == "__main__":
    sys.exit(main())
