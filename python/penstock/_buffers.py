"""The buffers of a module in a commit: running statistics and the like, which no optimizer has."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from penstock import _state
from penstock.errors import InvalidArgumentError

_log = logging.getLogger("penstock")


def _buffers(model: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module, str, torch.Tensor]]:
    """Yields name, module, name in it, and tensor, of each buffer once."""
    seen = set()
    for path, module in model.named_modules():
        for name, buffer in module._buffers.items():
            if buffer is not None and id(buffer) not in seen:
                seen.add(id(buffer))
                yield f"{path}.{name}" if path else name, module, name, buffer


class Buffers:
    """The buffers of one module: persistent ones, and others that have changed since this was made."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = model
        self._first = {name: (buffer, buffer._version) for name, _, _, buffer in _buffers(model)}

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Returns them by name."""
        found = {}
        for name, module, own, buffer in _buffers(self._model):
            first, version = self._first.get(name, (None, 0))
            changed = first is not buffer or version != buffer._version
            if changed or own not in module._non_persistent_buffers_set:
                found[name] = buffer
        return found

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Sets them, on the device where they are.

        Raises:
            InvalidArgumentError: the module lacks one.
        """
        there = {name: (module, own) for name, module, own, _ in _buffers(self._model)}
        for name in state:
            if name not in there:
                raise InvalidArgumentError(
                    f"penstock: the commit has a buffer {name}, and the module has none of that name; "
                    "make the same module"
                )
        for name, value in state.items():
            module, own = there[name]
            buffer = module._buffers[own]
            assert buffer is not None
            if (buffer.shape, buffer.dtype) == (value.shape, value.dtype):
                buffer.copy_(value)
            else:
                module._buffers[own] = value.to(buffer.device)

    def resume(self, text: Mapping[str, Any], run: str) -> None:
        """Sets them as in a commit of a run."""
        if "buffers" in text:
            self.load_state_dict(_state.decode(text["buffers"]))
        elif self.state_dict():
            _log.warning(
                "penstock: the commit of run %s was made by an older version, which kept no buffers, "
                "so %s and others begin anew",
                run,
                next(iter(self.state_dict())),
            )
