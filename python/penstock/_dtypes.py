"""The dtypes that are trained, by the names and numbers that the C interface has for them."""

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
