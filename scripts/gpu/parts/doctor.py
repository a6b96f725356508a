"""What does `penstock doctor` find, and how fast is the drive?"""

from __future__ import annotations

import re
import subprocess
import sys

from said import KIT, drive, say

_SPEED = re.compile(r"([\d.]+) GB/s written, ([\d.]+) GB/s read, ([\d.]+) GB/s with both in turn")


def main() -> int:
    folder = drive()
    where = ["--nvme-path", str(folder)] if folder is not None else []
    done = subprocess.run(
        [str(KIT / "penstock"), "doctor", *where],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    print(done.stdout, flush=True)
    if folder is None:
        say(name="drive", missing="no folder has O_DIRECT; nothing is trained on a drive")
    speed = _SPEED.search(done.stdout)
    if speed:
        write, read, both = map(float, speed.groups())
        say(name="drive", write_gbps=write, read_gbps=read, both_gbps=both)
    for line in done.stdout.splitlines():
        if line.startswith("fail"):  # a finding about the machine; what follows says what it costs
            say(name="doctor", missing=" ".join(line.split()[1:]))
    if "checks: " in done.stdout:
        return 0
    print(f"penstock doctor: error: it ended with {done.returncode} before its last line")
    return 1


if __name__ == "__main__":
    sys.exit(main())
