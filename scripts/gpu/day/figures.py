"""Figures against their floors and limits, from the results of a day's parts.

A floor is computed from what the same day measured. N is the number of parameters, and an update
moves 26 bytes for each (master, moments, gradient).
"""

from __future__ import annotations

from typing import Any

Row = dict[str, Any]
_UPDATE_BYTES = 26


def _first(rows: list[Row], **wanted: Any) -> Row | None:
    """The last result with these values."""
    found = [row for row in rows if all(row.get(key) == value for key, value in wanted.items())]
    return found[-1] if found else None


def _judged(text: str, value: float, limit: float, at_least: bool) -> str:
    good = value >= limit if at_least else value <= limit
    word = "at least" if at_least else "at most"
    return f"{text:<52}{value:8.2f}  {word} {limit:.2f}: {'yes' if good else 'NO'}"


def _memory(rows: list[Row]) -> list[str]:
    copies = [row["gbps"] for row in rows if row.get("name") == "copy"]
    updates = [row for row in rows if row.get("name") == "update"]
    if not copies:
        return []
    lines = [f"{'host memory, copy, read and written':<52}{max(copies):8.1f}  GB/s"]
    for row in updates:
        lines.append(f"{'update, ' + str(row['threads']) + ' threads':<52}{row['gbps']:8.1f}  GB/s")
    return lines


def _bandwidth(rows: list[Row]) -> float:
    """Bytes a second of host memory, or 0."""
    return max([0.0, *(row["gbps"] * 1e9 for row in rows if row.get("name") == "copy")])


def _drive(rows: list[Row]) -> float:
    """Bytes a second of the drive, read and written in turn, or 0."""
    row = _first(rows, name="drive")
    return row["both_gbps"] * 1e9 if row else 0.0


def _done(rows: list[Row], part: str) -> dict[str, Row]:
    """Contenders of a part that made all their steps, by kind."""
    return {row["kind"]: row for row in rows if row.get("part") == part and row.get("done")}


def _rates(rows: list[Row], part: str) -> list[str]:
    lines = []
    for kind, row in _done(rows, part).items():
        lines.append(
            f"{part + ', ' + kind:<52}{row['tokens_per_s']:8.0f}  tokens/s, {row['seconds']:.3f} s a "
            f"step, {row['device_peak_mib']} MiB of the device"
        )
    return lines


# part, what, against, least ratio of their tokens/s
_RATIOS = (
    ("accumulate", "level1", "torch", 0.90),
    ("accumulate", "level2", "torch", 0.85),
    ("steps", "level1", "deepspeed", 1.4),
    ("steps", "level2", "deepspeed", 1.4),
    ("steps-nvme", "level2", "deepspeed", 2.0),
)


def _ratios(rows: list[Row]) -> list[str]:
    lines = []
    for part, ours, theirs, least in _RATIOS:
        done = _done(rows, part)
        if ours in done and theirs in done:
            ratio = done[ours]["tokens_per_s"] / max(1e-9, done[theirs]["tokens_per_s"])
            lines.append(_judged(f"{part}, {ours} against {theirs}", ratio, least, True))
    return lines


def _against_floor(rows: list[Row]) -> list[str]:
    """Steps with states on the host: backward + max(forward, update)."""
    done, bandwidth = _done(rows, "steps"), _bandwidth(rows)
    torch = done.get("torch")
    if torch is None or bandwidth == 0 or "forward_s" not in torch:
        return []
    update = _UPDATE_BYTES * torch["parameters"] / bandwidth
    floor = torch["backward_s"] + max(torch["forward_s"], update)
    lines = [f"{'floor of a step: backward + max(forward, update)':<52}{floor:8.3f}  s"]
    for kind, most in (("level1", 1.10), ("level2", 1.15)):
        if kind in done:
            ratio = done[kind]["seconds"] / floor
            lines.append(_judged(f"steps, {kind} against the floor", ratio, most, False))
    return lines


def _drive_floor(rows: list[Row]) -> list[str]:
    """Steps with everything on a drive: the larger of compute and what the drive moves."""
    done, rate = _done(rows, "steps-nvme"), _drive(rows)
    torch, ours = done.get("torch"), done.get("level2")
    if torch is None or ours is None or rate == 0:
        return []
    floor = max(
        torch["forward_s"] + torch["backward_s"], _UPDATE_BYTES * torch["parameters"] / rate
    )
    line = "steps-nvme, level2 against max(compute, drive)"
    return [_judged(line, ours["seconds"] / floor, 1.10, False)]


def _trainings(rows: list[Row]) -> list[str]:
    """Steps of penstock train, against the largest of what bounds them."""
    limits = {"train-host": 1.15, "train-host-64k": 1.05, "train-nvme": 1.10}
    lines = []
    for row in (row for row in rows if row.get("kind") == "train" and row.get("done")):
        name = row["part"]
        rate = _drive(rows) if row["home"] == "nvme" else _bandwidth(rows)
        update = 0.0
        if row["home"] != "none" and rate > 0:
            update = _UPDATE_BYTES * row["parameters"] / rate
        # forward_s has the wait for the update in it.
        forward = max(0.0, row["compute_s"] - row["backward_s"])
        floor = row["backward_s"] + max(forward, update)
        if row["home"] == "nvme":
            floor = max(row["compute_s"], update)
        lines.append(
            f"{name:<52}{row['seconds']:8.3f}  s a step, {row['tokens_per_s']:.0f} tokens/s, "
            f"{row['tflops']:.0f} TFLOP/s, floor {floor:.3f} s"
        )
        if name in limits and update > 0:
            line = f"{name} against the floor"
            lines.append(_judged(line, row["seconds"] / floor, limits[name], False))
    own, cudnn = (_first(rows, part=p, done=True) for p in ("train-host", "attention-cudnn"))
    if own and cudnn:
        ratio = own["seconds"] / cudnn["seconds"]
        lines.append(f"{'attention: step with our own by one with cuDNN':<52}{ratio:8.2f}")
    return lines


def _bits(rows: list[Row]) -> list[str]:
    found = [row for row in rows if row["part"] == "bits" and "bits" in row]
    equal = sum(row["bits"] == "equal" for row in found)
    if not found:
        return []
    return [_judged("bits: cells equal to penstock.reference", equal, len(found), True)]


def lines(rows: list[Row]) -> list[str]:
    """Returns the lines of all figures that the results have."""
    found = _bits(rows) + _memory(rows)
    row = _first(rows, name="drive")
    if row:
        found.append(f"{'drive, read and written in turn':<52}{row['both_gbps']:8.2f}  GB/s")
    for part in ("steps", "accumulate", "steps-device", "larger", "steps-nvme"):
        found += _rates(rows, part)
    found += _against_floor(rows) + _drive_floor(rows)
    return found + _ratios(rows) + _trainings(rows)
