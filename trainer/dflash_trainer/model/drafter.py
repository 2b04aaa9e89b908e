"""The drafter: 11 tensors per layer plus fc and two norms. Embedding and head belong to the target."""

# Tensor letters: see dflash_trainer/__init__.py.

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, ParamSpec, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from dflash_trainer.compilation import WorkerCompiler
from dflash_trainer.model.attention import BlockLayout, FlexAttention, Visibility, flex_over_tiles, visibility
from dflash_trainer.model.layer import (
    DecoderLayer,
    LayerWeights,
    Norm,
    attention_and_mlp,
    expand_to_slots,
    project,
    rms_norm,
)
from dflash_trainer.model.rope import rope_tables
from dflash_trainer.model.shape import DrafterShape

P = ParamSpec("P")
T = TypeVar("T")


class _LayerRole(NamedTuple):
    """Position of a layer in the stack, and its attention mask."""

    first: bool
    last: bool
    visible: Visibility


class Drafter(nn.Module):
    """Predicts all draft blocks of a batch in one pass from the target's hidden states."""

    def __init__(self, shape: DrafterShape, *, compiled: bool = False, checkpointed: bool = False) -> None:
        super().__init__()
        self.shape = shape
        self.compiler = WorkerCompiler()
        self.compiled = compiled
        self.checkpointed = checkpointed
        captured = len(shape.target_layer_ids)
        self.fc = nn.Linear(captured * shape.hidden_size, shape.hidden_size, bias=False)
        self.hidden_norm = Norm(shape.hidden_size)
        self.layers = nn.ModuleList(DecoderLayer(shape) for _ in range(shape.num_layers))
        self.norm = Norm(shape.hidden_size)

    def forward(self, embedded_BUD: Tensor, states_BLX: Tensor, anchors_BN: Tensor, valid_BN: Tensor) -> Tensor:
        """Draft all blocks.

        Args:
            embedded_BUD: embeddings of the N anchor tokens, followed by the embedding of the mask token, which fills
                all other slots.
            states_BLX: hidden states of the captured layers.
            anchors_BN: positions of the anchors, from `draw_anchors`.
            valid_BN: False for padding blocks.

        Returns:
            Final hidden states of slots 1 .. K-1 after the last norm, [B, N*W, D], ready for the target's head.
        """
        shape = self.shape
        context = self.context(states_BLX)  # first: a large matmul hides the launches that follow
        cos, sin = self._rope(anchors_BN, states_BLX.shape[1])
        visible = self._visibilities(anchors_BN, valid_BN, states_BLX.shape[1])
        x, inputs = self._maybe_compiled(expand_to_slots)(embedded_BUD, shape.block_size), embedded_BUD
        for number, layer in enumerate(self.layers):
            assert isinstance(layer, DecoderLayer)
            role = _LayerRole(number == 0, number == shape.num_layers - 1, visible[shape.window_of(number)])
            x = inputs = self._layer(x, inputs, context, layer, cos, sin, role)
        return self._maybe_compiled(rms_norm)(x, self.norm.weight, shape.rms_norm_eps)

    def context(self, states_BLX: Tensor) -> Tensor:
        """Return the context that every layer attends to: hidden_norm(fc(states)), [B, L, D]."""
        reduced = functional.linear(states_BLX.to(self.fc.weight.dtype), self.fc.weight)
        return self._maybe_compiled(rms_norm)(reduced, self.hidden_norm.weight, self.shape.rms_norm_eps)

    def _rope(self, anchors_BN: Tensor, context: int) -> tuple[Tensor, Tensor]:
        table = self._maybe_compiled(_rope_of_blocks)
        return table(
            anchors_BN,
            context=context,
            block=self.shape.block_size,
            head_dim=self.shape.head_dim,
            theta=self.shape.rope_theta,
        )

    def _visibilities(self, anchors_BN: Tensor, valid_BN: Tensor, context: int) -> dict[int, Visibility]:
        windows = {self.shape.window_of(number) for number in range(self.shape.num_layers)}
        block = self.shape.block_size
        return {
            window: visibility(anchors_BN, valid_BN, BlockLayout(context, block, window)) for window in sorted(windows)
        }

    def _layer(
        self,
        x: Tensor,
        inputs: Tensor,
        context: Tensor,
        layer: DecoderLayer,
        cos: Tensor,
        sin: Tensor,
        role: _LayerRole,
    ) -> Tensor:
        """Run a layer on `x` [B, Q, D], recomputed in the backward pass with gradient checkpointing.

        `inputs` are projected: [B, U, D] in the first layer, `x` itself in all others.
        """
        arguments = (x, inputs, context, layer.weights(), cos, sin, role)
        if self.checkpointed and torch.is_grad_enabled():
            output: Tensor = checkpoint(self._compute, *arguments, use_reentrant=False)
            return output
        return self._compute(*arguments)

    def _compute(
        self, x: Tensor, inputs: Tensor, context: Tensor, w: LayerWeights, cos: Tensor, sin: Tensor, role: _LayerRole
    ) -> Tensor:
        width, eps = self.shape.head_dim, self.shape.rms_norm_eps
        block = self.shape.block_size if role.first else 0
        projected = self._maybe_compiled(project)(inputs, context, w, cos, sin, head_dim=width, eps=eps, block=block)
        finish, flex = self._maybe_compiled(attention_and_mlp), self._flex(role.visible)
        return finish(x, projected, w, role.visible, flex, eps=eps, drop_anchor=role.last)

    def _flex(self, visible: Visibility) -> FlexAttention:
        """Return flex_attention for a layer: inlined into the compiled layer, or compiled on its own."""
        standalone = visible.tiles is not None and not self.compiled
        return self.compiler.compiled(flex_over_tiles) if standalone else flex_over_tiles

    def _maybe_compiled(self, function: Callable[P, T]) -> Callable[P, T]:
        return self.compiler.compiled(function) if self.compiled else function


def block_positions(anchors_BN: Tensor, block: int) -> Tensor:
    """Return positions anchor .. anchor+K-1 of every block, [B, Q]."""
    return (anchors_BN[..., None] + torch.arange(block, device=anchors_BN.device)).flatten(1)


def _rope_of_blocks(
    anchors_BN: Tensor, *, context: int, block: int, head_dim: int, theta: float
) -> tuple[Tensor, Tensor]:
    """Return cosine and sine of the context positions, then of the draft slots, each [B, S, E]."""
    before = torch.arange(context, device=anchors_BN.device).expand(anchors_BN.shape[0], -1)
    positions = torch.cat((before, block_positions(anchors_BN, block)), dim=1)
    return rope_tables(positions, head_dim=head_dim, theta=theta)
