"""Configurations: reading a caller's, and making the engine's (docs/config.md)."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any, Union

from penstock._config_types import checked
from penstock._files import paths_of
from penstock._text_files import parse_json, read_text
from penstock.errors import InvalidArgumentError, NotFoundError

ConfigLike = Union[None, str, "os.PathLike[str]", Mapping[str, Any]]

# A string of JSON, which is kept, or a comment, which is removed.
_STRING_OR_COMMENT = re.compile(r'"(?:\\.|[^"\\])*"|//[^\n]*|/\*.*?\*/', re.DOTALL)
# Sections that an optimizer's arguments replace.
_OF_THE_CALLER = {
    "optimizer": "the optimizer is this class: give lr, betas, eps and weight_decay to it",
    "scheduler": "use a scheduler of torch.optim.lr_scheduler",
}


def read_config(config: ConfigLike) -> dict[str, Any]:
    """Returns a configuration that is given as a mapping or as a file with comments.

    Raises:
        PenstockError: it cannot be read, or has a value of a wrong kind.
    """
    if config is None:
        return {}
    if isinstance(config, Mapping):
        return checked(config)
    if not isinstance(config, (str, os.PathLike)):
        raise InvalidArgumentError(
            f"penstock: config is {config!r:.80}; give a mapping, or the path of a file"
        )
    try:
        text = read_text(config, InvalidArgumentError)
    except OSError as error:
        raise NotFoundError(f"penstock: {config} cannot be read: {error.strerror}") from None
    bare = _STRING_OR_COMMENT.sub(lambda m: m[0] if m[0].startswith('"') else " ", text)
    read = parse_json(bare, config, InvalidArgumentError)
    if not isinstance(read, dict):
        raise InvalidArgumentError(f"penstock: {config} is not a JSON object")
    return checked(read)


def merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Merges objects key by key; other values of ``above`` replace those below."""
    result = dict(below)
    for key, value in above.items():
        old = result.get(key)
        both = isinstance(old, Mapping) and isinstance(value, Mapping)
        result[key] = merged(old, value) if both else value  # type: ignore[arg-type]
    return result


MONITORS = ("tensorboard", "wandb")


def without_monitors(
    config: Mapping[str, Any],
) -> tuple[dict[str, Any], dict[str, Mapping[str, Any]]]:
    """Returns a configuration without the sections of monitors that Python handles, and these."""
    sections = {name: config[name] for name in MONITORS if isinstance(config.get(name), Mapping)}
    return {key: value for key, value in config.items() if key not in sections}, sections


def _nvme_of(config: Mapping[str, Any]) -> Any:
    """Returns ``nvme_path`` of a configuration whose optimizer states are on nvme, else None."""
    zero = config.get("zero_optimization")
    section = zero.get("offload_optimizer") if isinstance(zero, Mapping) else None
    if isinstance(section, Mapping) and section.get("device") == "nvme":
        return section.get("nvme_path")
    return None


def optimizer_config(
    optimizer: Mapping[str, Any],
    nvme_path: None | str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    host_memory: None | int | str,
    overlap: bool,
    durable: bool,
    config: ConfigLike,
    home: str | None = None,
) -> tuple[dict[str, Any], list[str]]:
    """Returns the engine's configuration of a level 1 optimizer, and the folders on drives.

    Weights of the engine live where the states do: an update reads and writes both. A key of
    ``config`` replaces an argument, except where only the argument may be given.
    """
    given = read_config(config)
    for key, instead in _OF_THE_CALLER.items():
        if given.get(key):
            raise InvalidArgumentError(f"penstock: config has {key}; {instead}")
    of_config: Any | None = _nvme_of(given)
    if nvme_path is not None and of_config not in (None, nvme_path):
        raise InvalidArgumentError(
            f"penstock: nvme_path is {nvme_path}, and that of config is {of_config}; give one"
        )
    nvme = paths_of(nvme_path if nvme_path is not None else of_config)
    if home is not None and (home != "device" or nvme):
        raise InvalidArgumentError(
            f"penstock: home is {home!r}"
            + (f", and nvme_path is {nvme}" if nvme else "")
            + '; give "device" for states beside the parameters, a folder on a drive in nvme_path, '
            "or neither for host memory"
        )
    offload: dict[str, Any] = {"device": "none" if home == "device" else "cpu"}
    if nvme:
        offload = {"device": "nvme", "nvme_path": nvme[0] if len(nvme) == 1 else nvme}
    ours: dict[str, Any] = {"overlap": bool(overlap), "durable": bool(durable)}
    if host_memory is not None:
        ours["host_memory"] = host_memory
    base = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "gradient_clipping": 0,
        "zero_optimization": {"stage": 3, "offload_optimizer": offload, "offload_param": offload},
        "penstock": ours,
    }
    return {**merged(base, given), "optimizer": dict(optimizer)}, nvme
