"""The rest of a training's state, as JSON for a commit (docs/pytorch_runs.md): random number
generators, schedulers, loaders and scalers.
"""

from __future__ import annotations

import base64
import ctypes
import json
import math
import random
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from penstock._text_files import check_fields, is_count, is_object
from penstock.errors import CorruptionError, InvalidArgumentError, PenstockError

_TEXT = {
    "calls": is_count,
    "groups": lambda value: isinstance(value, list),
    "random": is_object,
    "attached": is_object,
}
MAX_BYTES = 256 * 1024 * 1024  # limit of the caller's part of a commit (docs/c_api.md)


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def encode(value: Any, name: str) -> Any:
    """Returns ``value`` as JSON values; ``name`` is its place in error messages."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {"$float": str(float(value))}
    if isinstance(value, (list, tuple)):
        items = [encode(item, f"{name}[{i}]") for i, item in enumerate(value)]
        return items if isinstance(value, list) else {"$tuple": items}
    if isinstance(value, Mapping):
        return _encode_mapping(value, name)
    if isinstance(value, (bytes, bytearray)):
        return {"$bytes": _base64(bytes(value))}
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    if torch is not None and isinstance(value, torch.Tensor):
        flat = value.detach().cpu().contiguous().reshape(-1)
        data = ctypes.string_at(flat.data_ptr(), flat.numel() * flat.element_size())
        dtype = str(value.dtype).replace("torch.", "")
        return {"$tensor": [dtype, list(value.shape), _base64(data)]}
    if numpy is not None and isinstance(value, numpy.ndarray) and not value.dtype.hasobject:
        return {"$array": [value.dtype.str, list(value.shape), _base64(value.tobytes())]}
    if numpy is not None and isinstance(value, numpy.generic):
        return encode(value.item(), name)
    raise InvalidArgumentError(
        f"penstock: {name} is a {type(value).__name__}, which a commit cannot keep; leave it out of "
        "state_dict(), or make numbers, texts or tensors of it"
    )


def _encode_mapping(value: Mapping[Any, Any], name: str) -> Any:
    if isinstance(value, Counter):  # MultiStepLR has one
        return {"$counter": _encode_mapping(dict(value), name)}
    if all(isinstance(key, str) and not key.startswith("$") for key in value):
        return {key: encode(item, f"{name}.{key}") for key, item in value.items()}
    pairs = [
        [encode(key, f"{name}: a key"), encode(item, f"{name}[{key!r}]")]
        for key, item in value.items()
    ]
    return {"$dict": pairs}


def _tensor(dtype: str, shape: list[int], data: str) -> Any:
    import torch

    flat = torch.empty(shape, dtype=getattr(torch, dtype))
    content = base64.b64decode(data)
    if len(content) != flat.numel() * flat.element_size():
        raise ValueError("a tensor of another size")
    ctypes.memmove(flat.data_ptr(), content, len(content))
    return flat


def _array(dtype: str, shape: list[int], data: str) -> Any:
    import numpy

    return numpy.frombuffer(base64.b64decode(data), dtype=dtype).reshape(shape).copy()


_DECODERS: Mapping[str, Callable[[Any], Any]] = {
    "$bytes": base64.b64decode,
    "$float": float,
    "$tuple": lambda items: tuple(_decode(item) for item in items),
    "$dict": lambda pairs: {_decode(key): _decode(item) for key, item in pairs},
    "$counter": lambda counts: Counter(_decode(counts)),
    "$tensor": lambda parts: _tensor(*parts),
    "$array": lambda parts: _array(*parts),
}


def decode(value: Any) -> Any:
    """Returns the value that :func:`encode` was given.

    Raises:
        CorruptionError: ``value`` is no result of :func:`encode`.
    """
    try:
        return _decode(value)
    except (ValueError, TypeError, AttributeError, RuntimeError, RecursionError) as error:
        if isinstance(error, PenstockError):
            raise
        raise CorruptionError(
            f"penstock: a saved value is not as penstock writes it: {value!r:.80}"
        ) from None


def _decode(value: Any) -> Any:
    if isinstance(value, list):
        return [_decode(item) for item in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1:
        (key, inner), *_ = value.items()
        if key in _DECODERS:
            return _DECODERS[key](inner)
        if key.startswith("$"):
            raise CorruptionError(f"penstock: a commit has a value of unknown kind {key}")
    return {key: _decode(item) for key, item in value.items()}


def random_states() -> dict[str, Any]:
    """Returns the states of all default generators of a training."""
    states: dict[str, Any] = {"python": random.getstate()}
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if numpy is not None and hasattr(numpy, "random"):
        states["numpy"] = numpy.random.get_state()
    if torch is not None:
        states["torch"] = torch.get_rng_state()
        if torch.cuda.is_initialized():
            states["cuda"] = torch.cuda.get_rng_state_all()
    return states


def restore_random(states: Mapping[str, Any]) -> None:
    """Sets the generators that :func:`random_states` has read."""
    random.setstate(states["python"])
    if "numpy" in states:
        import numpy

        numpy.random.set_state(states["numpy"])
    if "torch" in states:
        import torch

        torch.set_rng_state(states["torch"])
        if "cuda" in states and torch.cuda.is_available():
            torch.cuda.set_rng_state_all(states["cuda"])


def check_attached(attached: Mapping[str, Any]) -> None:
    """Raises if an object has no state that can be read and set."""
    for name, thing in attached.items():
        for method in ("state_dict", "load_state_dict"):
            if not callable(getattr(thing, method, None)):
                raise InvalidArgumentError(
                    f"penstock: {name}, a {type(thing).__name__}, has no {method}(), so a commit "
                    "cannot keep it"
                )


def capture(
    attached: Mapping[str, Any], kept: Mapping[str, Any], **sections: Any
) -> dict[str, Any]:
    """Returns the text of a commit: ``sections``, random states, and what is attached.

    Args:
        kept: parts of an older text: ``"attached"``, to which the attached objects are added, and
            ``"random"``, which replaces the current states.

    Raises:
        InvalidArgumentError: it has what JSON cannot hold.
    """
    text: dict[str, Any] = {name: encode(value, name) for name, value in sections.items()}
    text["random"] = kept["random"] if "random" in kept else encode(random_states(), "random")
    current = {name: encode(thing.state_dict(), name) for name, thing in attached.items()}
    text["attached"] = {**kept.get("attached", {}), **current}
    return text


def to_json(text: Mapping[str, Any]) -> bytes:
    """Returns the text of a commit as it is kept.

    Raises:
        InvalidArgumentError: it is too long.
    """
    kept = json.dumps(text).encode()
    if len(kept) > MAX_BYTES:
        sizes = {name: len(json.dumps(value)) for name, value in text["attached"].items()}
        sizes["everything else"] = len(kept) - sum(sizes.values())
        largest = max(sizes, key=lambda name: sizes[name])
        raise InvalidArgumentError(
            f"penstock: the state beside the weights is {len(kept)} bytes, and a commit has room "
            f"for {MAX_BYTES}; most is {largest} with {sizes[largest]} bytes: save that elsewhere"
        )
    return kept


def check_text(text: Any, run: str) -> None:
    """Raises unless this package wrote the caller's part of a commit."""
    check_fields(text, _TEXT, f"the commit of {run}")


def restore(text: Mapping[str, Any], attached: Mapping[str, Any]) -> None:
    """Restores the attached objects and the generators from a commit.

    Raises:
        InvalidArgumentError: the commit has no state of an attached object.
    """
    for name in attached:
        if name not in text["attached"]:
            raise InvalidArgumentError(
                f"penstock: the commit has no state of {name}; it has "
                f"{', '.join(text['attached']) or 'none'}"
            )
    for name, thing in attached.items():
        thing.load_state_dict(decode(text["attached"][name]))
    restore_random(decode(text["random"]))
