"""Runs the command of a case and says what it did that no command may do."""

import dataclasses
import os
import re
import stat
import subprocess

import base_set
from commands import Case

HANG_S = 20
Listing = dict[str, tuple[int, ...]]


@dataclasses.dataclass
class Verdict:
    """What was found, and what the program said."""

    findings: list[str]
    code: int
    stderr: str


def listing(folder: str) -> Listing:
    """Every path below a folder with what changes when its content does."""
    found: Listing = {}
    for parent, folders, files in os.walk(folder):
        for name in folders + files:
            path = os.path.join(parent, name)
            info = os.lstat(path)
            of_content = (
                ()
                if stat.S_ISDIR(info.st_mode)
                else (info.st_size, info.st_mtime_ns, info.st_ctime_ns)
            )
            found[os.path.relpath(path, folder)] = (info.st_mode, info.st_ino, *of_content)
    return found


def changes(case: Case, before: Listing, after: Listing) -> list[str]:
    """What was made, changed or removed and should not have been."""
    found = []
    for path in sorted(before.keys() | after.keys()):
        if path not in before:
            if not re.fullmatch(case.may_make, path) and not re.fullmatch(case.may_change, path):
                found.append(f"made {path}")
        elif before[path] != after.get(path) and not re.fullmatch(case.may_change, path):
            found.append(f"{'changed' if path in after else 'removed'} {path}")
    return found


def said_wrong(case: Case, code: int, stderr: str) -> list[str]:
    """Exit code and messages."""
    found = []
    if code < 0:
        found.append(f"killed by signal {-code}")
    elif code not in (0, 1, 2, 3, 4) or (code == 1 and case.arguments[0] != "compare"):
        found.append(f"exit code {code}")
    if any(word in stderr for word in ("penstock: bug:", "Sanitizer", "runtime error")):
        found.append("a CHECK or a sanitizer's report")
    if "unexpected failure in a library" in stderr:
        found.append("an exception that nobody expected")
    lines = stderr.splitlines()
    errors = [line for line in lines if line.startswith("penstock: error:")]
    if len(errors) != (1 if code in (2, 3, 4) else 0):
        found.append(f"{len(errors)} error lines")
    if not all(line.startswith("penstock: ") for line in lines):
        found.append("a line that is not penstock's")
    if case.must_fail and code == 0:
        found.append("damage that was not noticed")
    if code == 0 and case.must_tell not in stderr:
        found.append(f"nothing told of damage ({case.must_tell})")
    return found


def judge(program: str, case: Case) -> Verdict:
    """Runs it."""
    before = listing(case.folder)
    try:
        done = subprocess.run(
            [program, *case.arguments],
            cwd=case.folder,
            env=base_set.program_environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=HANG_S,
            check=False,
        )
        code, stderr = done.returncode, done.stderr.decode(errors="replace")
        findings = said_wrong(case, code, stderr)
    except subprocess.TimeoutExpired as expired:
        code, stderr = -1, (expired.stderr or b"").decode(errors="replace")
        findings = [f"no end after {HANG_S} s"]
    return Verdict(findings + changes(case, before, listing(case.folder)), code, stderr)
