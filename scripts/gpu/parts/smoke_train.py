"""Five steps of a tiny model with everything on the device, on the host, and on a drive with each
I/O engine: the losses must be bit for bit equal."""

from __future__ import annotations

import sys

import harness
import training
from said import drive, say, scratch


def main() -> int:
    places = [("none", ""), ("cpu", ""), *(("nvme", e) for e in ("io_uring", "libaio", "threads"))]
    expected = None
    failed = False
    for home, engine in places:
        name = f"{home} {engine}".strip()
        if home == "nvme" and drive() is None:
            say(name=name, missing="no folder has O_DIRECT")
            continue
        lacks = harness.missing_engine(engine)
        if lacks is not None:
            say(name=name, missing=lacks)
            continue
        job = training.Job(vocabulary=256, home=home, engine=engine, device_memory="64MiB")
        done = training.train(job, scratch() / name.replace(" ", "-"))
        if done.error or len(done.rows) != job.steps:
            say(name=name, error=done.error or f"{len(done.rows)} of {job.steps} steps")
            failed = True
            continue
        losses = [row["loss"] for row in done.rows]
        expected = expected or losses
        same = losses == expected
        failed = failed or not same
        say(name=name, bits="equal" if same else "DIFFER", first=losses[0], last=losses[-1])
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
