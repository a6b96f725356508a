"""A DeepSpeed configuration, completed by the training arguments of transformers."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from penstock._config import ConfigLike, merged, read_config
from penstock.errors import InvalidArgumentError


def _values(args: Any) -> dict[str, tuple[Any, str]]:
    """Returns the arguments' value and name for each key, as in accelerate."""
    batch = args.per_device_train_batch_size * args.gradient_accumulation_steps
    return {
        "train_micro_batch_size_per_gpu": (
            args.per_device_train_batch_size,
            "per_device_train_batch_size",
        ),
        "gradient_accumulation_steps": (
            args.gradient_accumulation_steps,
            "gradient_accumulation_steps",
        ),
        "train_batch_size": (
            batch,
            "per_device_train_batch_size times gradient_accumulation_steps",
        ),
        "gradient_clipping": (args.max_grad_norm, "max_grad_norm"),
        "optimizer.params.lr": (args.learning_rate, "learning_rate"),
        "optimizer.params.betas": ([args.adam_beta1, args.adam_beta2], "adam_beta1 and adam_beta2"),
        "optimizer.params.eps": (args.adam_epsilon, "adam_epsilon"),
        "optimizer.params.weight_decay": (args.weight_decay, "weight_decay"),
        "fp16.enabled": (bool(args.fp16 or args.fp16_full_eval), "fp16"),
        "bf16.enabled": (bool(args.bf16 or args.bf16_full_eval), "bf16"),
    }


def _node(config: dict[str, Any], key: str) -> tuple[dict[str, Any], str]:
    """Returns the object that has a key, and the key in it."""
    *path, last = key.split(".")
    for name in path:
        inner = config.get(name)
        config = inner if isinstance(inner, dict) else {}
    return config, last


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(_same, one, other))
    return bool(one == other)


def _resolve(config: dict[str, Any], args: Any) -> None:
    """Replaces "auto" by the arguments, and refuses values that differ from them."""
    differ = []
    for key, (value, name) in _values(args).items():
        node, last = _node(config, key)
        said = node.get(last)
        if said == "auto":
            node[last] = value
        elif said is not None and not _same(said, value):
            differ.append(f"{key} is {said} and {name} {value}")
    if differ:
        raise InvalidArgumentError(
            f"penstock: the configuration and the training arguments differ: {'; '.join(differ)}; "
            'change one of them, or say "auto" in the configuration'
        )


def engine_config(given: ConfigLike, args: Any) -> dict[str, Any]:
    """Returns the configuration that ``penstock.initialize`` takes.

    Missing keys for batches, clipping and the optimizer get the arguments' values.

    Raises:
        InvalidArgumentError: the two differ, or a feature is not in this trainer.
    """
    config = copy.deepcopy(read_config(given))
    if config.get("scheduler"):
        raise InvalidArgumentError(
            "penstock: the configuration has scheduler; leave it out, and give lr_scheduler_type "
            "and warmup_steps to TrainingArguments"
        )
    named = config.get("optimizer") or {"type": "AdamW"}
    params = dict(named.get("params") or {})
    of_adam = ("betas", "eps") if str(named.get("type")).lower() in ("adam", "adamw") else ()
    for key in ("lr", "weight_decay", *of_adam):
        params.setdefault(key, "auto")
    config["optimizer"] = {**named, "params": params}
    config = merged(
        {
            "train_micro_batch_size_per_gpu": "auto",
            "gradient_accumulation_steps": "auto",
            "gradient_clipping": "auto",
        },
        config,
    )
    if _node(config, "fp16.enabled")[0].get("enabled") is True or args.fp16:
        raise InvalidArgumentError(
            "penstock: fp16 is enabled, and the trainer's scaler does not see gradients that are "
            "penstock's; train in bf16"
        )
    _resolve(config, args)
    return config


def uses_nvme(config: Mapping[str, Any]) -> bool:
    """Returns whether anything lives on a drive."""
    zero = config.get("zero_optimization") or {}
    homes = (zero.get(key) or {} for key in ("offload_optimizer", "offload_param"))
    return any(home.get("device") == "nvme" for home in homes)
