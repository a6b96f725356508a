"""Tiny models of the kinds that people fine-tune, with a batch for each.

A model is made by its name; the same name and dtype make the same weights.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

VOCABULARY, WIDTH, LENGTH, ROWS = 64, 32, 8, 2


def _gpt2() -> torch.nn.Module:
    import transformers

    config = transformers.GPT2Config(
        vocab_size=VOCABULARY,
        n_positions=LENGTH,
        n_embd=WIDTH,
        n_layer=4,
        n_head=4,
        use_cache=False,
    )
    return transformers.GPT2LMHeadModel(config)


_DECODER = {
    "vocab_size": VOCABULARY,
    "hidden_size": WIDTH,
    "intermediate_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 2 * LENGTH,
    "use_cache": False,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def _llama() -> torch.nn.Module:
    import transformers

    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**_DECODER))


def _qwen3() -> torch.nn.Module:
    import transformers

    config = transformers.Qwen3Config(**_DECODER, head_dim=16, tie_word_embeddings=True)
    return transformers.Qwen3ForCausalLM(config)


def _mixtral() -> torch.nn.Module:
    import transformers

    config = transformers.MixtralConfig(
        **{**_DECODER, "num_hidden_layers": 3},
        num_local_experts=4,
        num_experts_per_tok=2,
        output_router_logits=True,
    )
    return transformers.MixtralForCausalLM(config)


def _t5() -> torch.nn.Module:
    import transformers

    config = transformers.T5Config(
        vocab_size=VOCABULARY,
        d_model=WIDTH,
        d_kv=8,
        d_ff=64,
        num_layers=3,
        num_heads=4,
        use_cache=False,
        decoder_start_token_id=0,
    )
    return transformers.T5ForConditionalGeneration(config)


def _vit() -> torch.nn.Module:
    import transformers

    config = transformers.ViTConfig(
        hidden_size=WIDTH,
        num_hidden_layers=4,
        num_attention_heads=4,
        intermediate_size=64,
        image_size=16,
        patch_size=8,
        num_labels=8,
        hidden_dropout_prob=0.1,
    )
    return transformers.ViTForImageClassification(config)


def _lora() -> torch.nn.Module:
    import peft

    config = peft.LoraConfig(
        r=4, lora_alpha=8, lora_dropout=0.1, target_modules=["q_proj", "v_proj", "down_proj"]
    )
    return peft.get_peft_model(_llama(), config)


class OddBlock(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(WIDTH)
        self.up = torch.nn.Linear(WIDTH, 48)
        self.down = torch.nn.Linear(48, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))


class Odd(torch.nn.Module):
    """Calls a block twice, owns a parameter, and uses weights outside of their modules."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(VOCABULARY, WIDTH)
        self.scale = torch.nn.Parameter(torch.ones(WIDTH))
        self.blocks = torch.nn.ModuleList([OddBlock() for _ in range(4)])
        self.bias = torch.nn.Linear(WIDTH, WIDTH)
        self.checkpoint: bool | None = None  # reentrant?

    def _call(self, block: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        if self.checkpoint is None or not torch.is_grad_enabled():
            return block(x)
        from torch.utils.checkpoint import checkpoint

        return checkpoint(block, x, use_reentrant=self.checkpoint)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids) * self.scale * self.blocks[2].norm.weight
        for block in (*self.blocks, self.blocks[1]):
            x = self._call(block, x)
        x = x + self.bias.weight.sum(0) + self.bias(x)
        logits = torch.nn.functional.linear(x, self.embed.weight)
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids.flatten())


MODELS: dict[str, Callable[[], torch.nn.Module]] = {
    "gpt2": _gpt2,
    "llama": _llama,
    "qwen3": _qwen3,
    "mixtral": _mixtral,
    "t5": _t5,
    "vit": _vit,
    "lora": _lora,
    "odd": Odd,
}


def make(
    name: str, dtype: torch.dtype = torch.float32, checkpoint: bool | None = None
) -> torch.nn.Module:
    """Makes a model in training mode. ``checkpoint``: None: none, else whether reentrant."""
    torch.manual_seed(1)
    model = MODELS[name]().to(dtype)
    if checkpoint is not None:
        if isinstance(model, Odd):
            model.checkpoint = checkpoint
        else:
            model.gradient_checkpointing_enable({"use_reentrant": checkpoint})
            if name == "lora" and checkpoint:
                model.enable_input_require_grads()
    return model.train()


def batch(name: str, seed: int, dtype: torch.dtype = torch.float32) -> dict[str, Any]:
    """Returns the arguments of a forward."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(3, VOCABULARY, (ROWS, LENGTH), generator=generator)
    if name == "odd":
        return {"ids": ids}
    if name == "vit":
        pixels = torch.randn(ROWS, 3, 16, 16, generator=generator).to(dtype)
        return {"pixel_values": pixels, "labels": ids[:, 0] % 8}
    if name == "t5":
        return {"input_ids": ids, "labels": ids.flip(1)}
    return {"input_ids": ids, "labels": ids}


def loss_of(output: Any) -> torch.Tensor:
    loss: torch.Tensor = output if isinstance(output, torch.Tensor) else output.loss
    return loss
