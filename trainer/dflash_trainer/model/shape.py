"""Sizes of a drafter, from the configuration and the target."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dflash_trainer.config.requirements import check_drafter

if TYPE_CHECKING:
    from dflash_trainer.config.schema import DrafterConfig
    from dflash_trainer.config.target_shape import TargetShape


@dataclass(frozen=True, kw_only=True)
class DrafterShape:
    """Sizes needed to build a drafter and to write its config.json."""

    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    layer_types: tuple[str, ...]
    sliding_window: int
    rope_theta: float
    rms_norm_eps: float
    block_size: int
    mask_token_id: int
    target_layer_ids: tuple[int, ...]
    num_target_layers: int
    max_positions: int

    @property
    def num_layers(self) -> int:
        """Number of decoder layers."""
        return len(self.layer_types)

    def window_of(self, layer: int) -> int:
        """Return the attention window of a layer, 0 for full attention."""
        return self.sliding_window if self.layer_types[layer] == "sliding_attention" else 0


def drafter_shape(config: DrafterConfig, target: TargetShape) -> DrafterShape:
    """Return the drafter's sizes; values that the configuration leaves at 0 come from the target.

    Raises:
        ConfigError: the drafter section does not fit the target.
    """
    check_drafter(config, target)
    return DrafterShape(
        hidden_size=target.hidden_size,
        intermediate_size=config.intermediate_size or target.intermediate_size,
        num_heads=config.num_heads or target.num_heads,
        num_kv_heads=config.num_kv_heads or target.num_kv_heads,
        head_dim=config.head_dim or target.head_dim,
        vocab_size=target.vocab_size,
        layer_types=config.resolved_layer_types,
        sliding_window=config.sliding_window,
        rope_theta=config.rope_theta or target.rope_theta,
        rms_norm_eps=config.rms_norm_eps or target.rms_norm_eps,
        block_size=config.block_size,
        mask_token_id=config.mask_token_id,
        target_layer_ids=config.captured_layers(target.num_layers),
        num_target_layers=target.num_layers,
        max_positions=target.max_positions,
    )
