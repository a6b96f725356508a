"""The dtypes that are trained, by the names and numbers that the C interface has for them, and the
memory that it takes values from."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from penstock import _library

NAMES: Mapping[torch.dtype, str] = {
    torch.float32: "fp32",
    torch.bfloat16: "bf16",
    torch.float16: "fp16",
}
CODES: Mapping[torch.dtype, int] = {dtype: _library.DTYPES[name] for dtype, name in NAMES.items()}


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a tensor whose memory has its values, one after the other: a sparse one is made dense,
    and bits that say that memory has negated or conjugated values are resolved."""
    if tensor.layout != torch.strided:
        tensor = tensor.to_dense()
    elif tensor.is_contiguous() and not tensor.is_neg():
        return tensor.detach()
    return tensor.detach().resolve_conj().resolve_neg().contiguous()
