"""Small random targets, saved in the format of published models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

SIZES = {
    "hidden_size": 64,
    "num_hidden_layers": 6,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 128,
    "max_position_embeddings": 512,
}


def published(family: str, folder: Path, **changes: Any) -> Any:
    """Save a random model of `family` in the published format and return it."""
    import transformers as tf

    torch.manual_seed(0)
    kinds = {
        "llama": (tf.LlamaConfig, tf.LlamaForCausalLM),
        "qwen3": (tf.Qwen3Config, tf.Qwen3ForCausalLM),
        "qwen3_5": (tf.Qwen3_5TextConfig, tf.Qwen3_5ForCausalLM),
    }
    sizes = dict(SIZES)
    if family == "qwen3_5":
        sizes |= {"linear_num_key_heads": 2, "linear_num_value_heads": 4}
        sizes |= {"linear_key_head_dim": 16, "linear_value_head_dim": 16}
    config_kind, model_kind = kinds[family]
    model = model_kind(config_kind(**(sizes | changes))).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
    model.save_pretrained(folder)
    return model
