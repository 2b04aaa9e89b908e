"""The drafter: published tensors, dependencies between draft slots, checkpointing, and warm starts."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from dflash_trainer.config.schema import Config, DrafterConfig, RuntimeConfig, TargetConfig
from dflash_trainer.config.target_shape import RANDOM_SHAPES, TargetShape
from dflash_trainer.errors import ConfigError, InputError
from dflash_trainer.model import Drafter, build_drafter
from dflash_trainer.model.attention import BlockLayout, flex_over_tiles, visibility
from dflash_trainer.model.drafter import block_positions
from dflash_trainer.model.layer import DecoderLayer, attention_and_mlp, expand_to_slots, project
from dflash_trainer.model.rope import rope_tables
from safetensors.torch import save_file
from torch import Tensor

SHAPE = RANDOM_SHAPES["tiny"]
BLOCK, CONTEXT = 4, 24


def config_of(**drafter: object) -> Config:
    section = {"mask_token_id": 5, "num_layers": 2, "sliding_window": 6, "block_size": BLOCK, "num_captured": 2}
    return Config(
        target=TargetConfig(path="random:tiny"),
        drafter=DrafterConfig(**(section | drafter)),  # type: ignore[arg-type]
        runtime=RuntimeConfig(compile=False),
    )


def run_blocks(drafter: Drafter, embedded: Tensor, states: Tensor, anchors: Tensor) -> Tensor:
    """Return the hidden states of one row, [N, W, D]."""
    output = drafter(embedded, states, anchors, torch.ones_like(anchors, dtype=torch.bool))
    return output.view(anchors.shape[1], BLOCK - 1, -1)


def run_layer(drafter: Drafter, slots: Tensor, states: Tensor, anchors: Tensor) -> Tensor:
    """Run the second layer on arbitrary slots [1, Q, D]; returns [N, K, D]."""
    layer, window = drafter.layers[1], drafter.shape.window_of(1)
    assert isinstance(layer, DecoderLayer)
    width, eps = drafter.shape.head_dim, drafter.shape.rms_norm_eps
    positions = torch.cat((torch.arange(CONTEXT)[None], block_positions(anchors, BLOCK)), dim=1)
    cos, sin = rope_tables(positions, head_dim=width, theta=drafter.shape.rope_theta)
    visible = visibility(anchors, anchors > 0, BlockLayout(CONTEXT, BLOCK, window))
    weights = layer.weights()
    projected = project(slots, drafter.context(states), weights, cos, sin, head_dim=width, eps=eps)
    output = attention_and_mlp(slots, projected, weights, visible, flex_over_tiles, eps=eps, drop_anchor=False)
    return output.view(anchors.shape[1], BLOCK, -1)


@pytest.fixture
def inputs() -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    anchors = torch.tensor([[3, 10, 20]])
    embedded = torch.randn(1, 3 + 1, SHAPE.hidden_size, generator=generator)
    return embedded, torch.randn(1, CONTEXT, 2 * SHAPE.hidden_size, generator=generator), anchors


def test_27b_drafter_has_the_published_tensors() -> None:
    """58 tensors with published names and shapes, 1.730e9 parameters."""
    section = DrafterConfig(mask_token_id=248070, sliding_window=2048, num_heads=32, num_kv_heads=8, head_dim=128)
    config = Config(target=TargetConfig(path="random:qwen3.6-27b"), drafter=section)
    from dflash_trainer.model.shape import drafter_shape

    with torch.device("meta"):
        drafter = Drafter(drafter_shape(config.drafter, RANDOM_SHAPES["qwen3.6-27b"]))
    tensors = {name: tuple(value.shape) for name, value in drafter.state_dict().items()}
    assert len(tensors) == 58
    assert round(sum(p.numel() for p in drafter.parameters()) / 1e9, 3) == 1.730
    assert tensors["fc.weight"] == (5120, 25600)
    assert tensors["hidden_norm.weight"] == tensors["norm.weight"] == (5120,)
    layer = {name.removeprefix("layers.4."): size for name, size in tensors.items() if name.startswith("layers.4.")}
    assert layer == {
        "input_layernorm.weight": (5120,),
        "post_attention_layernorm.weight": (5120,),
        "self_attn.q_proj.weight": (4096, 5120),
        "self_attn.k_proj.weight": (1024, 5120),
        "self_attn.v_proj.weight": (1024, 5120),
        "self_attn.o_proj.weight": (5120, 4096),
        "self_attn.q_norm.weight": (128,),
        "self_attn.k_norm.weight": (128,),
        "mlp.gate_proj.weight": (17408, 5120),
        "mlp.up_proj.weight": (17408, 5120),
        "mlp.down_proj.weight": (5120, 17408),
    }
    assert drafter.shape.target_layer_ids == (1, 16, 31, 46, 61)
    assert drafter.shape.layer_types == ("sliding_attention",) * 4 + ("full_attention",)


def test_a_block_sees_the_context_strictly_before_its_anchor(inputs: tuple[Tensor, Tensor, Tensor]) -> None:
    embedded, states, anchors = inputs
    drafter = build_drafter(config_of(sliding_window=0), SHAPE)
    before = run_blocks(drafter, embedded, states, anchors)
    changed = states.clone()
    changed[:, 10] += 1.0
    after = run_blocks(drafter, embedded, changed, anchors)
    assert torch.equal(before[:2], after[:2])
    assert not torch.allclose(before[2], after[2])


def test_blocks_do_not_see_each_other(inputs: tuple[Tensor, Tensor, Tensor]) -> None:
    embedded, states, anchors = inputs
    drafter = build_drafter(config_of(), SHAPE)
    before = run_blocks(drafter, embedded, states, anchors)
    embedded = embedded.clone()
    embedded[:, 1] += 1.0
    after = run_blocks(drafter, embedded, states, anchors)
    assert torch.equal(before[[0, 2]], after[[0, 2]])
    assert not torch.allclose(before[1], after[1])


@pytest.mark.parametrize(("window", "causal"), [(6, True), (0, False)])
def test_sliding_layers_are_causal_inside_a_block(
    window: int, causal: bool, inputs: tuple[Tensor, Tensor, Tensor]
) -> None:
    """As in the servers; full layers are bidirectional."""
    embedded, states, anchors = inputs
    kinds = ("sliding_attention",) * 2 if causal else ("full_attention",) * 2
    drafter = build_drafter(config_of(sliding_window=window, layer_types=kinds), SHAPE)
    slots = expand_to_slots(embedded, BLOCK)
    before = run_layer(drafter, slots, states, anchors)
    slots[:, BLOCK - 1] += 1.0
    after = run_layer(drafter, slots, states, anchors)
    assert torch.equal(before[0, :-1], after[0, :-1]) == causal
    assert not torch.allclose(before[0, -1], after[0, -1])


def test_first_layer_projects_the_mask_token_once(inputs: tuple[Tensor, Tensor, Tensor]) -> None:
    """The projections and gradients equal those of a projection slot by slot, in two rows."""
    embedded, states = (torch.cat((each, each.flip(1))) for each in inputs[:2])
    drafter = build_drafter(config_of(), SHAPE)
    layer = drafter.layers[0]
    assert isinstance(layer, DecoderLayer)
    cos, sin = rope_tables(torch.arange(CONTEXT + 3 * BLOCK).repeat(2, 1), head_dim=SHAPE.head_dim, theta=1e4)
    found = []
    for once in (True, False):
        drafter.zero_grad()
        common = (drafter.context(states), layer.weights(), cos, sin)
        if once:
            projected = project(embedded, *common, head_dim=SHAPE.head_dim, eps=1e-6, block=BLOCK)
        else:
            slots = expand_to_slots(embedded, BLOCK)
            assert not torch.equal(slots[0, 1], slots[1, 1])
            projected = project(slots, *common, head_dim=SHAPE.head_dim, eps=1e-6)
        sum(each.sin().sum() for each in projected).backward()  # type: ignore[union-attr]
        found.append([*projected, *(p.grad for p in drafter.parameters() if p.grad is not None)])
    assert len(found[0]) == 3 + 2 + 6
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_sliding_window_limits_the_context(inputs: tuple[Tensor, Tensor, Tensor]) -> None:
    """With window 6, slot 1 of anchor 20 (position 21) sees positions 16 and later."""
    embedded, states, anchors = inputs
    drafter = build_drafter(config_of(num_layers=1, layer_types=("sliding_attention",)), SHAPE)
    before = run_blocks(drafter, embedded, states, anchors)
    for position, seen in ((15, False), (16, True)):
        changed = states.clone()
        changed[:, position] += 1.0
        after = run_blocks(drafter, embedded, changed, anchors)
        assert torch.equal(before[2, 0], after[2, 0]) != seen


def test_checkpointing_does_not_change_gradients(inputs: tuple[Tensor, Tensor, Tensor]) -> None:
    embedded, states, anchors = inputs
    drafter = build_drafter(config_of(), SHAPE)
    gradients = []
    for checkpointed in (False, True):
        drafter.checkpointed = checkpointed
        drafter.zero_grad()
        run_blocks(drafter, embedded, states, anchors).square().sum().backward()
        gradients.append({name: p.grad.clone() for name, p in drafter.named_parameters() if p.grad is not None})
    assert len(gradients[0]) == 25
    for name, value in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], value)


def test_initial_weights_are_reproducible() -> None:
    one, two = (build_drafter(config_of(), SHAPE).state_dict() for _ in range(2))
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert abs(float(one["fc.weight"].std()) - 0.02) < 0.001
    assert (one["norm.weight"] == 1).all()


def test_warm_start_from_a_published_drafter(tmp_path: Path) -> None:
    drafter = build_drafter(config_of(), SHAPE)
    save_file({name: value + 1 for name, value in drafter.state_dict().items()}, tmp_path / "model.safetensors")
    warm = build_drafter(config_of(init_from=str(tmp_path)), SHAPE)
    assert torch.equal(warm.fc.weight, drafter.fc.weight + 1)
    with pytest.raises(InputError, match=r"tensors differ.*expected"):
        build_drafter(config_of(init_from=str(tmp_path), num_layers=3), SHAPE)
    with pytest.raises(InputError, match="cannot be read"):
        build_drafter(config_of(init_from=str(tmp_path / "none")), SHAPE)


def test_mask_token_outside_the_embedding_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"mask_token_id = 256.*256 rows"):
        build_drafter(config_of(mask_token_id=256), SHAPE)


def test_sizes_come_from_the_target_unless_set() -> None:
    target: TargetShape = RANDOM_SHAPES["smollm2-135m"]
    drafter = build_drafter(config_of(head_dim=32), target)
    assert drafter.shape.num_heads == 9
    assert drafter.shape.head_dim == 32
    assert drafter.layers[0].self_attn.q_proj.weight.shape == (9 * 32, 576)  # type: ignore[union-attr]
