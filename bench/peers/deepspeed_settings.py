"""Settings of DeepSpeed that its step time hangs on, and a search for the best of them.

A setting is a key of DeepSpeed's configuration with its sections ("aio.block_size") and a value.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

Settings = dict[str, Any]

PARAM = "zero_optimization.offload_param."
OPTIMIZER = "zero_optimization.offload_optimizer."
ZERO = "zero_optimization."

# Of 12 parameters of a GPT-2 block 4 are large enough for the drive. DeepSpeed keeps a model of this
# size in buffers once it was fetched (stage3_max_live_parameters), one for each parameter: with fewer
# it ends with "Not enough buffers 0 for swapping 1".
PARAM_BUFFERS = 56


def base(largest: int) -> Settings:
    """Returns the settings that a search begins with: DeepSpeed's defaults, but for sizes, and
    max_in_cpu, whose default keeps the weights of a model of this size in memory.

    Args:
        largest: elements of the largest parameter, which a buffer must hold.
    """
    return {
        "aio.block_size": 1 << 20,
        "aio.queue_depth": 8,
        "aio.intra_op_parallelism": 1,
        "aio.single_submit": False,
        "aio.overlap_events": True,
        PARAM + "pin_memory": True,
        PARAM + "buffer_count": PARAM_BUFFERS,
        PARAM + "buffer_size": -(-largest // 65536) * 65536,
        PARAM + "max_in_cpu": 0,
        OPTIMIZER + "pin_memory": True,
        OPTIMIZER + "buffer_count": 5,
        OPTIMIZER + "pipeline_read": False,
        OPTIMIZER + "pipeline_write": False,
        ZERO + "sub_group_size": 1_000_000_000,
        ZERO + "stage3_prefetch_bucket_size": 50_000_000,
        ZERO + "stage3_param_persistence_threshold": 100_000,
    }


def _each(key: str, *values: Any) -> list[Settings]:
    return [{key: value} for value in values]


def _pipeline(read: bool, write: bool, buffers: int) -> Settings:
    return {
        OPTIMIZER + "pipeline_read": read,
        OPTIMIZER + "pipeline_write": write,
        OPTIMIZER + "buffer_count": buffers,
    }


def dimensions() -> list[list[Settings]]:
    """Returns what a search tries, one dimension after the other, and alternatives in each."""
    return [
        [
            {ZERO + "sub_group_size": size, **pipeline}
            for size in (1_000_000_000, 20_000_000, 5_000_000)
            for pipeline in (
                _pipeline(False, False, 5),
                _pipeline(True, False, 8),
                _pipeline(False, True, 8),
                _pipeline(True, True, 12),
            )
            if size < 1_000_000_000 or pipeline[OPTIMIZER + "buffer_count"] == 5
        ],
        _each("aio.intra_op_parallelism", 1, 2, 4, 8),
        _each("aio.block_size", 1 << 18, 1 << 20, 1 << 22, 1 << 23),
        _each("aio.queue_depth", 8, 32, 128),
        _each("aio.single_submit", False, True),
        _each("aio.overlap_events", True, False),
        [{PARAM + "pin_memory": pin, OPTIMIZER + "pin_memory": pin} for pin in (True, False)],
        _each(ZERO + "stage3_prefetch_bucket_size", 0, 5_000_000, 50_000_000, 500_000_000),
        _each(ZERO + "stage3_param_persistence_threshold", 10_000, 100_000, 1_000_000),
        [
            {},
            {
                PARAM + "buffer_count": 24,
                ZERO + "stage3_max_live_parameters": 30_000_000,
                ZERO + "stage3_max_reuse_distance": 0,
            },
        ],
        _each(PARAM + "max_in_cpu", 0, 1_000_000_000),
    ]


def put(config: dict[str, Any], settings: Settings) -> dict[str, Any]:
    """Returns the configuration with the settings in their sections."""
    for key, value in settings.items():
        *sections, name = key.split(".")
        section = config
        for part in sections:
            section = section.setdefault(part, {})
        section[name] = value
    return config


def search(start: Settings, fixed: Settings, measure: Callable[[Settings], float]) -> Settings:
    """Returns the best settings that a search by coordinates found, each measured once.

    Args:
        start: what it begins with.
        fixed: what it does not change.
        measure: the seconds of a step with settings; infinite where DeepSpeed fails.
    """
    best = {**start, **fixed}
    least = measure(best)
    for alternatives in dimensions():
        before = best
        for alternative in alternatives:
            settings = {**before, **alternative, **fixed}
            if settings in (before, best):
                continue
            seconds = measure(settings)
            if seconds < least:
                best, least = settings, seconds
    if math.isinf(least):
        raise SystemExit("deepspeed_step_ratio: error: DeepSpeed failed with all settings")
    return best
