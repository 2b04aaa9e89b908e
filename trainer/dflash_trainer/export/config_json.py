"""The config.json of an exported drafter: a Qwen3 configuration plus the drafter's keys.

Every key comes from the drafter's shape. Nothing is copied from the target's configuration, so that its rotary settings
(partial rotary factor, several axes) cannot leak into a drafter that rotates the whole head.
"""

from __future__ import annotations

from typing import Any

from dflash_trainer.model.shape import DrafterShape

_MAX_POSITIONS = 32768


def config_json(shape: DrafterShape, dtype: str) -> dict[str, Any]:
    """Return config.json for a drafter whose tensors are stored as `dtype`."""
    sliding = "sliding_attention" in shape.layer_types
    return {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "block_size": shape.block_size,
        "dflash_config": {
            "mask_token_id": shape.mask_token_id,
            "target_layer_ids": list(shape.target_layer_ids),
        },
        "dtype": dtype,
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "hidden_size": shape.hidden_size,
        "initializer_range": 0.02,
        "intermediate_size": shape.intermediate_size,
        "layer_types": list(shape.layer_types),
        "max_position_embeddings": shape.max_positions or _MAX_POSITIONS,
        "max_window_layers": shape.num_layers,
        "num_attention_heads": shape.num_heads,
        "num_hidden_layers": shape.num_layers,
        "num_key_value_heads": shape.num_kv_heads,
        "num_target_layers": shape.num_target_layers,
        "rms_norm_eps": shape.rms_norm_eps,
        "rope_scaling": None,
        "rope_theta": shape.rope_theta,
        "sliding_window": shape.sliding_window if sliding else None,
        "tie_word_embeddings": False,
        "use_cache": True,
        "use_sliding_window": sliding,
        "vocab_size": shape.vocab_size,
    }
