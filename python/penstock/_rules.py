"""The optimizer rules as the engine and torch know them. Nothing here needs torch."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from penstock import _library
from penstock.errors import InvalidArgumentError


class Rule(NamedTuple):
    """A rule: its names, and which moments it keeps."""

    name: str  # of the class, here and in torch.optim
    exp_avg: bool
    exp_avg_sq: bool
    moments: Mapping[str, int]  # names in torch.optim's layout, and kinds of the C interface


ADAMW = Rule("AdamW", True, True, {"exp_avg": _library.EXP_AVG, "exp_avg_sq": _library.EXP_AVG_SQ})
ADAM = ADAMW._replace(name="Adam")
LION = Rule("Lion", True, False, {"exp_avg": _library.EXP_AVG})
ADAGRAD = Rule("Adagrad", False, True, {"sum": _library.EXP_AVG_SQ})

# Keys of the defaults that are the same for all groups in a configuration.
_OF_ALL_GROUPS = ("lr_decay", "initial_accumulator_value")
# Options of torch.optim that change numbers and are not offered.
_REFUSED = ("amsgrad", "maximize", "differentiable", "capturable")


def optimizer_section(rule: Rule, defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Returns ``optimizer`` of a configuration."""
    params: dict[str, Any] = {
        key: float(defaults[key])
        for key in ("lr", "eps", "weight_decay", *_OF_ALL_GROUPS)
        if key in defaults
    }
    if "betas" in defaults:
        params["betas"] = [float(beta) for beta in defaults["betas"]]
    kind = rule.name
    if kind in ("Adam", "AdamW"):
        kind, params["adam_w_mode"] = "Adam", kind == "AdamW"
    return {"type": kind, "params": params}


def check_group(group: Mapping[str, Any], number: int, defaults: Mapping[str, Any]) -> None:
    """Raises if a parameter group has options that would be ignored."""
    for key in _REFUSED:
        if group.get(key):
            raise InvalidArgumentError(
                f"penstock: parameter group {number} has {key}={group[key]}, which is not offered; "
                "leave it out"
            )
    for key in _OF_ALL_GROUPS:
        if key in defaults and group[key] != defaults[key]:
            raise InvalidArgumentError(
                f"penstock: parameter group {number} has its own {key}, which is one for all; give "
                "it to the optimizer"
            )


def _number(value: Any, what: str) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        raise InvalidArgumentError(
            f"penstock: {what} of a parameter group is {value!r}; give a number"
        ) from None


def scalars(group: Mapping[str, Any]) -> _library.Group:
    """Returns the current scalars of a parameter group."""
    beta1, beta2 = group.get("betas", (0.0, 0.0))
    return _library.Group(
        _number(group["lr"], "lr"),
        _number(beta1, "betas"),
        _number(beta2, "betas"),
        _number(group.get("eps", 0.0), "eps"),
        _number(group["weight_decay"], "weight_decay"),
    )


def group_options(param_groups: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Returns the parameter groups without their parameters."""
    return [
        {key: value for key, value in group.items() if key not in ("params", "param_names")}
        for group in param_groups
    ]


def _hash_of(value: Any) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()


class Identity(NamedTuple):
    """The values that a resumed commit must have.

    Attributes:
        keys: one for each value that may differ.
        whole: one hash of all, as in commits of the older format and in state_dicts.
    """

    keys: Mapping[str, str]
    whole: str

    def options(self, kind: str) -> dict[str, Any]:
        """Returns the engine option for a run of a kind."""
        return {"identity": {"kind": kind, **self.keys}, "older_identity": self.whole}


def identity(rule: Rule, members: Iterable[tuple[str, list[int], str, int]]) -> Identity:
    """Returns the values that a resumed commit must have.

    Args:
        members: name, shape, dtype and number of the parameter group (-1: frozen) of each
            parameter.
    """
    model = sorted(members, key=lambda member: member[0])
    names = ("names", "shapes", "dtypes", "groups")
    hashes = {name: _hash_of([member[i] for member in model]) for i, name in enumerate(names)}
    return Identity({"rule": rule.name, **hashes}, _hash_of([rule.name, model]))


def clip_factor(norm: float, max_norm: float) -> float:
    """Returns the factor for a gradient of this norm: DeepSpeed's rule, like the engine's."""
    return 1.0 / max(1.0, (norm + 1e-6) / max_norm) if max_norm > 0 else 1.0
