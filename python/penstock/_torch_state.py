"""What other code finds in an optimizer whose states are the engine's."""

from __future__ import annotations

import collections
import json
from collections.abc import Mapping
from typing import Any

_KEY = "penstock"


class Elsewhere(collections.defaultdict[Any, dict[str, Any]]):
    """``optimizer.state``: empty, and true all the same.

    ``torch.distributed.checkpoint`` takes an optimizer whose state is false for one without states,
    and makes a step with gradients of zeros to get some.
    """

    def __init__(self) -> None:
        super().__init__(dict)

    def __bool__(self) -> bool:
        return True


def name_commit(state_dict: dict[str, Any], said: Any) -> None:
    """Has a ``state_dict`` name a commit, also if only its groups are kept, as by
    ``torch.distributed.checkpoint``."""
    state_dict[_KEY] = said
    if said is not None and state_dict["param_groups"]:
        state_dict["param_groups"][0][_KEY] = json.dumps(said)


def commit_named_in(state_dict: Mapping[str, Any]) -> Any:
    """Returns what :func:`name_commit` was given."""
    groups = state_dict["param_groups"]
    if _KEY in state_dict or not groups or not isinstance(groups[0].get(_KEY), str):
        return state_dict.get(_KEY)
    try:
        return json.loads(groups[0][_KEY])
    except ValueError:
        return groups[0][_KEY]


def options_of(group: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the options of a group in a ``state_dict``."""
    return {key: value for key, value in group.items() if key not in (_KEY, "params")}
