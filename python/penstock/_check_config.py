"""The effect of each key of a DeepSpeed configuration in this package (docs/pytorch_check.md)."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from penstock import _library
from penstock._config import without_monitors
from penstock.errors import InvalidArgumentError

USED, SUPERSEDED, NO_EFFECT, REFUSED = "used", "superseded", "no effect", "refused"

_LOOP = "the loop is yours, and says it"
_RANKS = "there is one rank"
_TORCH = "torch computes, and has its memory and threads"
_PROGRAM = "the program `penstock train` does it, and this package does not"
_RECOMPUTE = (
    "activations are torch's: model.gradient_checkpointing_enable(), or torch.utils.checkpoint"
)
_DTYPE = (
    "the module's own dtypes count; convert it before penstock.initialize, as by "
    "model.to(torch.bfloat16)"
)
# Keys that the library understands, but that have no effect on a torch module. The longest matching
# prefix of a path counts.
_HERE: Mapping[str, tuple[str, str]] = {
    "train_batch_size": (NO_EFFECT, _LOOP),
    "train_micro_batch_size_per_gpu": (NO_EFFECT, _LOOP),
    "steps_per_print": (NO_EFFECT, _LOOP),
    "wall_clock_breakdown": (NO_EFFECT, _LOOP),
    "dataloader_drop_last": (NO_EFFECT, _LOOP),
    "memory_breakdown": (SUPERSEDED, "optimizer.counters() has bytes and counts"),
    "dump_state": (SUPERSEDED, "optimizer.describe() says what was made"),
    "bf16.enabled": (NO_EFFECT, _DTYPE),
    "bfloat16.enabled": (NO_EFFECT, _DTYPE),
    "fp16.enabled": (
        USED,
        "optimizer.backward(loss) scales the loss; convert the module by model.half() before",
    ),
    "bf16.check_grad_overflow": (SUPERSEDED, "a gradient that is not finite always skips the step"),
    "communication_data_type": (NO_EFFECT, _RANKS),
    "activation_checkpointing": (NO_EFFECT, _RECOMPUTE),
    "penstock.activation_home": (NO_EFFECT, _RECOMPUTE),
    "penstock.device_memory": (
        NO_EFFECT,
        "on the CPU, where torch has its memory; on a GPU it is the most that weights take there",
    ),
    "penstock.compute_threads": (NO_EFFECT, _TORCH),
    "penstock.device_tflops": (NO_EFFECT, _PROGRAM),
    "penstock.drive": (NO_EFFECT, _PROGRAM),
    "penstock.commit_every_seconds": (NO_EFFECT, "optimizer.commit() commits"),
    "penstock.snapshot_every_steps": (NO_EFFECT, _PROGRAM),
    "penstock.keep_snapshots": (NO_EFFECT, _PROGRAM),
    "penstock.rampup_batch_size": (NO_EFFECT, _LOOP),
    "penstock.gradient_order": (NO_EFFECT, _RANKS),
    "penstock.attention": (NO_EFFECT, _TORCH),
    "penstock.heartbeat_seconds": (NO_EFFECT, _RANKS),
    "penstock.comm_timeout_seconds": (NO_EFFECT, _RANKS),
    "penstock.missing_gradients": (USED, ""),
    "penstock.gradient_sums": (USED, ""),
    "zero_optimization.stage3_gather_16bit_weights_on_model_save": (
        SUPERSEDED,
        "model.state_dict() and save_pretrained have all weights",
    ),
}
# Other names of keys.
_SAME = {
    "aio.intra_op_parallelism": "aio.thread_count",
    "aio.num_threads": "aio.thread_count",
    "bfloat16.bf16_optimizer_states": "bf16.bf16_optimizer_states",
    "zero_optimization": "zero_optimization.stage",
}
_SCHEDULER = "use a scheduler of torch.optim.lr_scheduler on the optimizer"
_RULES = ("adamw", "adam", "lion", "adagrad")
# Any model will do: the effect of a key does not depend on it.
_MODEL = {
    "units": [{"name": "unit", "tensors": [{"name": "tensor", "shape": [1], "group": 0}]}],
    "groups": [{"name": "group"}],
}


class Key(NamedTuple):
    """A key of the configuration, and its effect."""

    path: str
    value: Any
    becomes: str
    why: str


def leaves(config: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Yields path and value of everything except non-empty objects."""
    for key, value in config.items():
        path = f"{above}{key}"
        if isinstance(value, Mapping) and value:
            yield from leaves(value, f"{path}.")
        else:
            yield path, value


def nvme_paths(config: Mapping[str, Any]) -> list[str]:
    """Returns the folders on drives that a configuration names."""
    zero = config.get("zero_optimization")
    for name in ("offload_optimizer", "offload_param"):
        section = zero.get(name) if isinstance(zero, Mapping) else None
        if isinstance(section, Mapping) and section.get("device") == "nvme":
            path = section.get("nvme_path")
            return [str(p) for p in path] if isinstance(path, list) else [str(path)]
    return []


def for_library(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the configuration without the keys that only this package knows."""
    engine = copy.deepcopy(without_monitors(config)[0])
    if isinstance(engine.get("penstock"), dict):
        engine["penstock"].pop("missing_gradients", None)
        engine["penstock"].pop("gradient_sums", None)
    batch = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
    if not any(key in engine for key in batch):
        engine["train_micro_batch_size_per_gpu"] = 1
    return engine


def _without(config: dict[str, Any], path: str) -> None:
    *above, key = path.split(".")
    section = config
    for name in above:
        section = section[name]
    section.pop(key)


def _in(message: str, config: Mapping[str, Any]) -> str | None:
    """Returns the longest path of the configuration that a message begins with or quotes."""
    paths = {path for path, _ in leaves(config)}
    for path in list(paths):
        while "." in path:
            path = path.rpartition(".")[0]
            paths.add(path)
    named = re.findall(r'^\S*:\d+: ([\w.]+)|^([\w.]+): |"([\w.]+)"', message)
    words = [word for groups in named for word in groups if word]
    return next((word for word in words if word in paths), None)


def _refusals_here(config: Mapping[str, Any]) -> dict[str, str]:
    """Returns what ``penstock.initialize`` refuses although the library does not."""
    refused = {}
    if config.get("scheduler"):
        refused["scheduler"] = _SCHEDULER
    section = config.get("optimizer")
    name = str(section.get("type", "AdamW")) if isinstance(section, Mapping) else "AdamW"
    if name.lower() not in _RULES:
        refused["optimizer.type"] = "penstock.initialize offers AdamW, Adam, Lion and Adagrad"
    return refused


def _ask(config: Mapping[str, Any]) -> tuple[dict[str, str], Mapping[str, Any]]:
    """Asks the library until it accepts; returns what was refused, by path, and its plan."""
    refused = _refusals_here(config)
    rest = for_library(config)
    for path in refused:
        _without(rest, path)
    while True:
        try:
            return refused, _library.plan(rest, _MODEL, {"folders": nvme_paths(rest) or ["."]})
        except InvalidArgumentError as error:
            message = str(error)
        path_or_none = _in(message, rest)
        if path_or_none is None and refused:  # a key is missing because it was refused
            return refused, {"notices": [], "config": rest}
        if path_or_none is None:
            raise InvalidArgumentError(message)
        refused[path_or_none] = re.sub(r"^\S*:\d+: ", "", message)
        _without(rest, path_or_none)


def _beginning(path: str, of: Mapping[str, Any]) -> str | None:
    """Returns the longest prefix of a path that is a key of ``of``."""
    while path:
        if path in of:
            return path
        path = path.rpartition(".")[0]
    return None


def _understand(notices: list[str]) -> tuple[dict[str, str], dict[str, str], list[str]]:
    """Returns superseded keys with their reasons, keys with values of "auto", and other lines."""
    superseded, auto, others = {}, {}, []
    for notice in notices:
        line = notice.removeprefix("config: ")
        if line.startswith("without effect: "):
            names, _, reason = line.removeprefix("without effect: ").partition(": ")
            superseded.update(dict.fromkeys(names.split(", "), reason))
        elif re.match(r"[\w.]+: auto -> ", line):
            path, _, value = line.partition(": ")
            auto[path] = value
        else:
            others.append(line)
    return superseded, auto, others


def look(config: Mapping[str, Any]) -> tuple[list[Key], list[str]]:
    """Returns the effect of each key, and the library's notices.

    Raises:
        InvalidArgumentError: the configuration is refused because of several keys together.
    """
    refused, plan = _ask(config)
    superseded, auto, others = _understand(plan["notices"])
    understood = {path for path, _ in leaves(plan["config"])}
    monitors = without_monitors(config)[1]
    keys = []
    for path, value in leaves(config):
        name, here = _beginning(path, refused), _beginning(path, _HERE)
        monitor = monitors.get(path.partition(".")[0])
        if monitor is not None:
            on = monitor.get("enabled") is True
            becomes = (USED, "") if on else (NO_EFFECT, "the monitor is off")
        elif name is not None:
            becomes = (REFUSED, refused[name])
        elif here is not None:
            becomes = _HERE[here]
        elif path in superseded:
            becomes = (SUPERSEDED, superseded[path])
        elif _SAME.get(path, path) in understood or path in auto:
            becomes = (USED, auto.get(path, ""))
        else:
            becomes = (NO_EFFECT, "the same as without it, or its feature is off")
        keys.append(Key(path, value, *becomes))
    return keys, others
