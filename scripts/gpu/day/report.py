"""The results of a day, in files that are complete at all times.

In the folder OUT: summary.txt (for people), results.jsonl (every "RESULT {json}" line that parts
printed, with the part's name), logs.tar.gz (every part's log). Files that were there before move to
OUT/earlier-N.
"""

from __future__ import annotations

import dataclasses
import io
import json
import os
import pathlib
import re
import tarfile
import time
from typing import Any

from day import figures
from day.folders import Places
from day.plan import Group, Part

_FILES = ("summary.txt", "results.jsonl", "logs.tar.gz")
_LOG_BYTES = 2 << 20  # of each log, its begin and its end
_LINE = 160
# The first line of a log that one of these finds, in this order, says best what was wrong.
_ERRORS = tuple(
    re.compile(pattern)
    for pattern in (
        r"^\S*(error|Error|Exception|Exit)\b.*: ",
        r"\berror: |Failure$|: FAILED|^FAILED|\*\*\*",
        r"(?i)segmentation fault|aborted|terminate called|out of memory|no such file|cannot open",
        r"(?i)error|fail",
    )
)
_HARMLESS = re.compile(
    r"(?i)\b(0|no) (failed|failures|errors?)\b|error summary: 0|-error-|last error"
)


@dataclasses.dataclass
class Row:
    """What became of a part."""

    name: str
    outcome: str  # ok, FAILED, left out, running, not reached
    seconds: float = 0.0
    why: str = ""


def first_error(log: str) -> str:
    """The line of a log that says best what was wrong."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    lines = [line for line in lines if not line.startswith(("RESULT ", "Traceback"))]
    for pattern in _ERRORS:
        for line in lines:
            if pattern.search(line) and not _HARMLESS.search(line):
                return line[:_LINE]
    return lines[-1][:_LINE] if lines else "it printed nothing"


def results_in(log: str, part: str) -> list[dict[str, Any]]:
    """The results that a part has printed; a line that was cut is left out. A result may stand
    behind words of a process that was ended within a line."""
    found = []
    for line in log.splitlines():
        _, mark, text = line.rpartition("RESULT {")
        if mark:
            try:
                found.append({"part": part, **json.loads("{" + text)})
            except ValueError:
                continue
    return found


def _replace(path: pathlib.Path, content: bytes) -> None:
    new = path.with_name(path.name + ".new")
    new.write_bytes(content)
    os.replace(new, path)


class Report:
    """Rows of the parts, in the order of the plan."""

    def __init__(self, out: pathlib.Path, places: Places) -> None:
        self.out = out.absolute()
        self._places = places
        self._rows: dict[str, Row] = {}
        self._notes = list(places.notes)
        self._seconds = 0.0
        self._began_at = ""
        self._ended = False

    def begin(self, groups: list[Group], seconds: float) -> None:
        """Makes the folder, and keeps what an earlier day has left there."""
        self.out.mkdir(parents=True, exist_ok=True)
        old = [self.out / name for name in _FILES if (self.out / name).exists()]
        if old:
            number = 1
            while (self.out / f"earlier-{number}").exists():
                number += 1
            (self.out / f"earlier-{number}").mkdir()
            for file in old:
                os.replace(file, self.out / f"earlier-{number}" / file.name)
        self._seconds = seconds
        self._began_at = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
        names = [part.name for group in groups for part in group.parts]
        self._rows = {name: Row(name, "not reached") for name in names}

    def started(self, part: Part) -> None:
        self._rows[part.name] = Row(part.name, "running")

    def left_out(self, part: Part, why: str) -> None:
        self._rows[part.name] = Row(part.name, "left out", why=why)

    def failed_to_start(self, part: Part, why: str) -> None:
        self._rows[part.name] = Row(part.name, "FAILED", why=why)

    def ended(self, part: Part, seconds: float) -> None:
        self._rows[part.name] = Row(part.name, "ok", seconds)

    def ended_without(self, part: Part, seconds: float) -> None:
        """The part's last "missing: " line says what the machine does not have."""
        lines = [x for x in self._log(part.name).splitlines() if x.startswith("missing: ")]
        why = lines[-1][len("missing: ") :] if lines else "it does not say why"
        self._rows[part.name] = Row(part.name, "left out", seconds, why[:_LINE])

    def ended_badly(self, part: Part, seconds: float, how: str) -> None:
        why = f"{how}: {first_error(self._log(part.name))}"
        self._rows[part.name] = Row(part.name, "FAILED", seconds, why)

    def note(self, line: str) -> None:
        self._notes.append(line)

    def failed(self) -> bool:
        return any(row.outcome == "FAILED" for row in self._rows.values())

    def _log(self, name: str) -> str:
        try:
            return (self._places.logs / name).read_text(errors="replace")
        except OSError:
            return ""

    def results(self) -> list[dict[str, Any]]:
        return [row for name in self._rows for row in results_in(self._log(name), name)]

    def summary(self, now: float) -> str:
        """What a person reads: what failed, what was left out, and the figures."""
        rows = list(self._rows.values())
        count = {o: [r for r in rows if r.outcome == o] for o in ("FAILED", "left out", "ok")}
        other = [row for row in rows if row.outcome in ("running", "not reached")]
        results = self.results()
        lines = [
            f"gpu-day {self._began_at}: {len(count['ok'])} ok, {len(count['FAILED'])} FAILED, "
            f"{len(count['left out'])} left out, {len(other)} not ended, {now:.0f} of "
            f"{self._seconds:.0f} s"
            + ("" if self._ended else " (still going when this was written)")
        ]
        for row in count["FAILED"] + count["left out"] + other:
            lines.append(f"{row.outcome:<12}{row.name:<18}{row.seconds:6.1f} s  {row.why}".rstrip())
        lines += [f"{'ok':<12}{row.name:<18}{row.seconds:6.1f} s" for row in count["ok"]]
        problems = [
            f"{row['part']}: {row.get('name', '')}: {kind}: {row[kind]}"[: _LINE + 40]
            for row in results
            for kind in ("missing", "unsupported", "error", "check", "bits")
            if row.get(kind, "ok") not in ("ok", "equal")
        ]
        lines += ["", *problems] if problems else []
        bench = self._log("cuda-bench").splitlines()
        found = [line for line in bench if "of the ceiling" in line] + figures.lines(results)
        lines += ["", *found] if found else []
        return "\n".join([*lines, "", *self._notes]) + "\n"

    def _archive(self) -> bytes:
        memory = io.BytesIO()
        with tarfile.open(fileobj=memory, mode="w:gz", compresslevel=3) as archive:
            for path in sorted(self._places.logs.rglob("*")):
                if not path.is_file():
                    continue
                with open(path, "rb") as file:
                    content = file.read(_LOG_BYTES // 2)
                    size = os.fstat(file.fileno()).st_size
                    if size > len(content):
                        file.seek(max(len(content), size - _LOG_BYTES // 2))
                        content += file.read(_LOG_BYTES // 2)
                entry = tarfile.TarInfo(f"logs/{path.relative_to(self._places.logs)}")
                entry.size = len(content)
                entry.mtime = int(time.time())
                archive.addfile(entry, io.BytesIO(content))
        return memory.getvalue()

    def write(self, now: float, final: bool = False) -> None:
        """Replaces the files; what a summary says, the results and logs beside it have."""
        self._ended = final
        text = self.summary(now)
        results = "".join(json.dumps(row) + "\n" for row in self.results())
        try:
            _replace(self.out / "logs.tar.gz", self._archive())
            _replace(self.out / "results.jsonl", results.encode())
            _replace(self.out / "summary.txt", text.encode())
        except OSError as error:
            line = f"a report could not be written: {error}"
            if line not in self._notes:
                self._notes.append(line)
