"""GPT-2 of transformers, as the parts in Python train it. Import it after torch can be imported."""

from __future__ import annotations

import torch
import transformers


def gpt2(layers: int, width: int, heads: int, length: int, vocabulary: int, attention: str):  # type: ignore[no-untyped-def]
    """Returns a model on torch's default device and in its default dtype, always the same."""
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        n_layer=layers,
        n_embd=width,
        n_head=heads,
        n_positions=length,
        vocab_size=vocabulary,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        use_cache=False,
        bos_token_id=0,
        eos_token_id=0,
        attn_implementation=attention,
    )
    return transformers.GPT2LMHeadModel(config)
