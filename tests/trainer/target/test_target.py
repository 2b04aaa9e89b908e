"""Hidden states against transformers, lookup of weights by name, and errors for unsupported weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from dflash_trainer.config.schema import Config, DrafterConfig, RuntimeConfig, TargetConfig
from dflash_trainer.errors import ConfigError, InputError
from dflash_trainer.target import load_target
from dflash_trainer.target.delta_net import RuleInputs, reference_delta_rule, unit_length
from dflash_trainer.target.fast_path import delta_rule_for
from dflash_trainer.target.weights import find_embedding_and_head
from published_targets import SIZES, published
from safetensors.torch import load_file, save_file


def config_of(folder: Path, *, captured: tuple[int, ...] = (1, 3, 4)) -> Config:
    return Config(
        target=TargetConfig(path=str(folder), dtype="float32"),
        drafter=DrafterConfig(mask_token_id=5, target_layer_ids=captured),
        runtime=RuntimeConfig(compile=False),
    )


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("llama", {}),
        ("llama", {"tie_word_embeddings": True}),
        ("llama", {"rope_parameters": {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0,
                                       "high_freq_factor": 4.0, "original_max_position_embeddings": 64}}),
        ("qwen3", {}),
        ("qwen3_5", {}),
    ],
)  # fmt: skip
def test_captured_states_equal_those_of_transformers(family: str, changes: dict[str, Any], tmp_path: Path) -> None:
    """Compares every captured layer on the unpadded positions; layer id i is hidden_states[i + 1]."""
    model = published(family, tmp_path, **changes)
    target = load_target(config_of(tmp_path), "cpu")
    ids = torch.randint(SIZES["vocab_size"], (2, 70))
    with torch.no_grad():
        layers = model(ids, output_hidden_states=True).hidden_states
    expected = torch.cat([layers[i + 1] for i in (1, 3, 4)], dim=-1)
    padded = torch.cat((ids, torch.zeros(2, 10, dtype=torch.int64)), dim=1)
    states = target.capture(padded)[:, :70]
    assert float((states - expected).norm() / expected.norm()) < 2e-5
    assert torch.equal(target.embed_weight, model.get_input_embeddings().weight)
    assert torch.equal(target.head_weight, model.get_output_embeddings().weight)
    assert (target.head_weight is target.embed_weight) == bool(changes.get("tie_word_embeddings"))
    assert len(target.weights.layers) == 5


def test_embedding_and_head_of_a_composite_checkpoint_are_found() -> None:
    names = ["model.language_model.embed_tokens.weight", "model.visual.pos_embed.weight", "mtp.embed_tokens.weight"]
    assert find_embedding_and_head([*names, "lm_head.weight"]) == ("model.language_model.", "lm_head.weight")
    assert find_embedding_and_head(names) == ("model.language_model.", names[0])
    with pytest.raises(InputError, match="0 tensor names end in"):
        find_embedding_and_head(["lm_head.weight"])


def test_damaged_weights_are_reported_by_name(tmp_path: Path) -> None:
    published("qwen3", tmp_path)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    name = "model.layers.2.mlp.up_proj.weight"
    cases = [
        ({k: v for k, v in tensors.items() if k != name}, f"tensor {name} is missing"),
        (tensors | {name: tensors[name][:5]}, r"up_proj.weight has shape \(5, 64\)"),
        (tensors | {"model.layers.0.self_attn.q_proj.bias": torch.zeros(64)}, "not supported, such as .*q_proj.bias"),
    ]
    for changed, message in cases:
        save_file({k: v.contiguous() for k, v in changed.items()}, file)
        with pytest.raises(InputError, match=message):
            load_target(config_of(tmp_path), "cpu")
    save_file({k: v for k, v in tensors.items() if k != "lm_head.weight"}, file)
    with pytest.raises(InputError, match=r"lm_head.weight is missing, and .*tie_word_embeddings"):
        load_target(config_of(tmp_path), "cpu")
    file.write_bytes(file.read_bytes()[:5000])
    with pytest.raises(InputError, match=r"model.safetensors: cannot be read"):
        load_target(config_of(tmp_path), "cpu")


def test_missing_fused_kernels_are_an_error_unless_allowed() -> None:
    """On CUDA the missing package is named in the error; on the CPU the reference is always used."""
    with pytest.raises(ConfigError, match=r"target.fast_path.*flash-linear-attention"):
        delta_rule_for(torch.device("cuda"), "require")
    assert delta_rule_for(torch.device("cuda"), "allow_slow") is reference_delta_rule
    assert delta_rule_for(torch.device("cpu"), "require") is reference_delta_rule


def test_reference_delta_rule_equals_a_loop_over_tokens() -> None:
    """Covers several chunks of 64 and a memory passed from one call to the next."""
    generator = torch.Generator().manual_seed(0)

    def random(*size: int) -> torch.Tensor:
        return torch.randn(*size, generator=generator)

    decay = -torch.nn.functional.softplus(random(2, 150, 4))
    q, k = unit_length(random(2, 150, 2, 8)), unit_length(random(2, 150, 2, 8))
    inputs = RuleInputs(q, k, random(2, 150, 4, 6), decay, torch.sigmoid(random(2, 150, 4)))
    expected, memory = [], torch.zeros(2, 4, 8, 6)
    for t in range(150):
        key, query = (x[:, t].repeat_interleave(2, 1) for x in (inputs.k, inputs.q))
        memory = memory * inputs.decay[:, t].exp()[..., None, None]
        error = (inputs.v[:, t] - (memory * key[..., None]).sum(2)) * inputs.beta[:, t][..., None]
        memory = memory + key[..., None] * error[:, :, None]
        expected.append((memory * query[..., None]).sum(2) * 8**-0.5)
    output, last = reference_delta_rule(inputs, None, True)
    torch.testing.assert_close(output, torch.stack(expected, 1), rtol=1e-4, atol=1e-5)
    assert last is not None
    torch.testing.assert_close(last, memory, rtol=1e-4, atol=1e-5)
    first, state = reference_delta_rule(RuleInputs(*(x[:, :37] for x in inputs)), None, True)
    second, _ = reference_delta_rule(RuleInputs(*(x[:, 37:] for x in inputs)), state, False)
    torch.testing.assert_close(torch.cat((first, second), 1), output, rtol=1e-4, atol=1e-5)


def test_captured_layer_beyond_the_target_is_an_error(tmp_path: Path) -> None:
    published("llama", tmp_path)
    with pytest.raises(ConfigError, match="the target has 6 layers"):
        load_target(config_of(tmp_path, captured=(1, 6)), "cpu")
