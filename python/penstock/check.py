"""``python -m penstock.check``: the effect of a DeepSpeed configuration, and a training's memory.

docs/pytorch_check.md describes its output.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from penstock import _library
from penstock._check_config import REFUSED, Key, for_library, look, nvme_paths
from penstock._check_model import Model, read_model
from penstock._config import read_config
from penstock.errors import PenstockError, UnavailableError

_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB")


def size_of(count: float) -> str:
    """Returns a number of bytes with a unit."""
    unit = 0
    while count >= 1024 and unit < len(_UNITS) - 1:
        count, unit = count / 1024, unit + 1
    return f"{count:.0f} {_UNITS[unit]}" if unit == 0 else f"{count:.1f} {_UNITS[unit]}"


def dtype_of(config: Mapping[str, Any]) -> str:
    """Returns the dtype that a configuration asks for."""
    for section, dtype in (("bf16", "bf16"), ("bfloat16", "bf16"), ("fp16", "fp16")):
        value = config.get(section)
        if isinstance(value, Mapping) and value.get("enabled") is True:
            return dtype
    return "fp32"


def make_plan(config: Mapping[str, Any], keys: Sequence[Key], model: Model) -> Any:
    """Returns the plan of a training of the model by the accepted part of the configuration."""
    if any(key.becomes == REFUSED for key in keys):
        return None
    options = {"folders": nvme_paths(config) or ["."]}
    return _library.plan(for_library(config), model.text, options)


def key_lines(keys: Sequence[Key]) -> list[str]:
    paths = max((len(key.path) for key in keys), default=0)
    values = [json.dumps(key.value) for key in keys]
    shown = [value if len(value) <= 24 else value[:21] + "..." for value in values]
    width = max((len(value) for value in shown), default=0)
    return [
        f"  {key.path:{paths}}  {value:{width}}  {key.becomes}"
        + (f": {key.why}" if key.why else "")
        for key, value in zip(keys, shown)
    ]


def model_lines(model: Model, plan: Any) -> list[str]:
    units = model.text["units"]
    repeated = sum(bool(unit["repeated"]) for unit in units)
    lines = [
        (
            "parameters",
            f"{model.parameters} in {len(units)} units, {repeated} of them repeated "
            f"({model.made_of})",
        )
    ]
    if plan is None:
        return [_line(*line) for line in [*lines, ("plan", "none while keys are refused")]]
    host, torch = plan["host_bytes"], plan["device_bytes"]
    there = plan["device_home_bytes"]
    classes = " + ".join(
        f"{name} {size_of(count)}" for name, count in host.items() if name != "total" and count
    )
    kept = f"blocks that take turns {size_of(torch['slots'])} + kept {size_of(torch['kept'])}"
    lines += [
        ("host memory", f"{size_of(host['total'])} of {size_of(plan['host_limit'])}: {classes}"),
        (
            "smallest",
            f"penstock.host_memory: {plan['host_minimum']} ({size_of(plan['host_minimum'])})",
        ),
        *(
            [("device memory", f"{size_of(there['total'])} for states at home there")]
            if there["total"]
            else []
        ),
        ("parameters in torch", f"{size_of(torch['slots'] + torch['kept'])}: {kept}"),
        ("state files", size_of(plan["state_file_bytes"])),
        ("fits", "yes" if plan["fits"] else f"no: {plan['shortage']}"),
    ]
    return [_line(*line) for line in lines]


def _line(name: str, text: str) -> str:
    return f"  {name:20}{text}"


def report(options: argparse.Namespace) -> int:
    """Writes the report; returns the exit code."""
    config = read_config(options.config)
    if options.host_memory is not None:
        ours = config.get("penstock")
        ours = ours if isinstance(ours, Mapping) else {}
        config = {**config, "penstock": {**ours, "host_memory": options.host_memory}}
    keys, notices = look(config)
    model = plan = None
    if options.model is not None:
        model = read_model(options.model, dtype_of(config))
        plan = make_plan(config, keys, model)
    if options.json:
        written = {
            "keys": {
                key.path: {"value": key.value, "becomes": key.becomes, "why": key.why}
                for key in keys
            },
            "notices": notices,
            "model": model and {**model._asdict(), "parameters": model.parameters},
            "plan": plan,
        }
        print(json.dumps(written, indent=1))
    else:
        lines = [str(options.config), *key_lines(keys), *(f"  {notice}" for notice in notices)]
        if model is not None:
            lines += ["", str(options.model), *model_lines(model, plan)]
        print("\n".join(lines))
    refused = any(key.becomes == REFUSED for key in keys)
    return 2 if refused or (plan is not None and not plan["fits"]) else 0


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m penstock.check",
        description="Says what each key of a DeepSpeed configuration becomes, and what a training "
        "takes.",
    )
    parser.add_argument("config", type=pathlib.Path, help="ds_config.json")
    parser.add_argument("model", type=pathlib.Path, nargs="?", help="a folder with config.json")
    parser.add_argument("--host-memory", help="the limit, such as 24GiB")
    parser.add_argument("--json", action="store_true", help="writes one JSON object")
    options = parser.parse_args(arguments)
    try:
        return report(options)
    except (ImportError, UnavailableError) as error:
        code, line = 3, str(error)
    except PenstockError as error:
        code, line = 2, str(error)
    print(f"penstock.check: {line}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
