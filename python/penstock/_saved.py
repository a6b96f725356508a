"""What autograd saves of weights for a backward.

While a forward runs, hooks (``torch.autograd.graph.saved_tensors_hooks``) see each tensor that
autograd saves. One in the memory of a unit, such as a weight or its transpose, is replaced by its
place in the unit; in the backward the unit is brought, and the tensor made anew. So a unit may leave
between its forward and its backward, whatever the module returns and the loss depends on.

Other tensors are saved as torch would: as they are, with their version, or by the hooks that were
there before, such as those of checkpointing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from penstock._storage import Unit

_autograd: Any = torch._C._autograd

Bring = Callable[[Unit], None]


class SavedWeights:
    """The hooks of one training.

    Args:
        units: of the training.
        bring: called in a backward with a unit whose weights are needed.
    """

    def __init__(self, units: Iterable[Unit], bring: Bring) -> None:
        self.units = {unit.storage._cdata: unit for unit in units}
        self.bring = bring
        self._alone = _Hooks(self, None)

    def push(self) -> bool | None:
        """Begins to see what is saved on this thread.

        Returns:
            Whether :meth:`pop` must follow: False if hooks of this training are the last already.
            None: torch allows no such hooks here (within transforms of ``torch.func``).
        """
        if not _autograd._saved_tensors_hooks_is_enabled():
            return None
        before = _autograd._top_saved_tensors_default_hooks(False)
        if before is None:
            hooks = self._alone
        else:
            last = getattr(before[0], "__self__", None)
            if isinstance(last, _Hooks) and last.training is self:
                return False
            hooks = _Hooks(self, before)
        _autograd._push_saved_tensors_default_hooks(hooks.pack, hooks.unpack)
        return True

    def pop(self) -> None:
        """Ends what :meth:`push` has begun."""
        _autograd._pop_saved_tensors_default_hooks()


class _Hooks:
    """One pair of hooks, on top of those that were there before."""

    __slots__ = ("before", "training", "units")

    def __init__(self, training: SavedWeights, before: Any) -> None:
        self.training = training
        self.units = training.units
        self.before = before

    def pack(self, tensor: torch.Tensor) -> Any:
        try:
            unit = self.units.get(tensor.untyped_storage()._cdata)
        except (NotImplementedError, RuntimeError):  # of a tensor without storage (a sparse one)
            unit = None
        if unit is not None:
            place = tensor.storage_offset(), tensor.shape, tensor.stride()
            return unit, unit.changes, tensor.dtype, place
        if self.before is not None:
            return self.before[1], self.before[0](tensor)
        # Detached: a tensor that its own node saves would never be freed with its graph.
        return tensor.detach() if tensor.requires_grad else tensor, tensor._version

    def unpack(self, packed: Any) -> torch.Tensor:
        first = packed[0]
        if type(first) is Unit:
            return self._weight(*packed)
        if self.before is not None:
            unpacked: torch.Tensor = first(packed[1])
            return unpacked
        tensor: torch.Tensor = first
        if tensor._version != packed[1]:
            raise RuntimeError(_modified(tensor, packed[1]))
        return tensor

    def _weight(self, unit: Unit, changes: int, dtype: torch.dtype, place: Any) -> torch.Tensor:
        if unit.changes != changes:
            raise RuntimeError(
                "penstock: one of the variables needed for gradient computation has been modified "
                f"by an inplace operation: optimizer.step() has changed the weights of {unit.name} "
                "since the forward; run the forward again"
            )
        self.training.bring(unit)
        return unit.saved(dtype, place)


def _modified(tensor: torch.Tensor, version: int) -> str:
    """What torch says without hooks, which then compares no versions."""
    return (
        "one of the variables needed for gradient computation has been modified by an inplace "
        f"operation: [{tensor.type()} {list(tensor.shape)}] is at version {tensor._version}; "
        f"expected version {version} instead. Hint: enable anomaly detection to find the operation "
        "that failed to compute its gradient, with torch.autograd.set_detect_anomaly(True)."
    )
