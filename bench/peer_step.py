"""Shared code of the scripts that measure a peer's drafter step: shapes of `bench drafter`, the step, its figures."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from peer_venv import run_in_peer_venv

if TYPE_CHECKING:
    from torch import Tensor, nn
    from transformers import Qwen3Config


@dataclass(frozen=True)
class Setting:
    """Shapes and device of a measurement."""

    target: str
    """Name in RANDOM_SHAPES."""
    device: str
    length: int
    anchors: int
    block: int
    window: int
    heads: int
    kv_heads: int
    head_dim: int
    mask_token: int

    @property
    def attention(self) -> str:
        """Return the attention implementation; flex_attention has no backward pass on the CPU."""
        return "flex_attention" if self.device == "cuda" else "sdpa"


FULL = Setting("qwen3.6-27b", "cuda", 4096, 512, 16, 2048, 32, 8, 128, 248070)
TINY = Setting("qwen3.6-tiny", "cpu", 256, 16, 16, 64, 4, 2, 16, 255)


class Peer(NamedTuple):
    """A peer's training model, ready to train."""

    loss: Callable[[Tensor, Tensor, Tensor], Tensor]
    """Loss of ids [1, S], hidden states [1, S, X] and loss mask [1, S]."""
    drafter: nn.Module
    betas: tuple[float, float]


class Ends(NamedTuple):
    """The target's frozen embedding and head, as modules."""

    embed: nn.Module
    head: nn.Module


def run(description: str, requirement: str, build: Callable[[Setting], Peer]) -> int:
    """Re-execute in the peer's venv, measure, print and write the figures."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="file for the figures")
    parser.add_argument("--length", type=int, help=f"context tokens (default {FULL.length})")
    parser.add_argument("--repeats", type=int, default=12, help="measured steps")
    parser.add_argument("--tiny", action="store_true", help="small shapes on the CPU, to test the script")
    arguments = parser.parse_args()
    run_in_peer_venv(requirement)
    setting = TINY if arguments.tiny else FULL
    setting = replace(setting, length=arguments.length or setting.length)
    result = {"peer": requirement, **measure(build, setting, arguments.repeats)}
    print(json.dumps(result), flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    return 0


def measure(build: Callable[[Setting], Peer], setting: Setting, repeats: int) -> dict[str, Any]:
    """Return median step time and peak memory of forward, backward, clipping to 1 and torch's fused AdamW.

    Weights are bf16. Ten warm-up steps exclude the recompilations that a peer makes for other anchors.
    """
    import torch
    from dflash_trainer.bench.measure import machine, peak_gb, reset_peak, time_back_to_back, time_call
    from dflash_trainer.config.target_shape import RANDOM_SHAPES

    device = torch.device(setting.device)
    target = RANDOM_SHAPES[setting.target]
    peer = build(setting)
    parameters = list(peer.drafter.parameters())
    optimizer = torch.optim.AdamW(parameters, lr=6e-4, betas=peer.betas, weight_decay=0.0, fused=True)
    ids = torch.randint(target.vocab_size, (1, setting.length), device=device)
    states = torch.randn(1, setting.length, 5 * target.hidden_size, device=device, dtype=torch.bfloat16)
    mask = torch.ones(1, setting.length, device=device)

    def step() -> None:
        peer.loss(ids, states, mask).backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    for _ in range(10):
        step()
    reset_peak(device)
    timing = time_call(step, device, repeats=repeats)
    unbroken = time_back_to_back(step, device, repeats=repeats)
    return {
        **machine(device),
        "length": setting.length,
        "step_ms": timing.total_ms,
        "step_ms_range": [timing.fastest_ms, timing.slowest_ms],
        "unbroken_step_ms": unbroken,
        "peak_gb": peak_gb(device),
    }


def drafter_config(setting: Setting, layer_types: tuple[str, ...] = ()) -> Qwen3Config:
    """Return the published configuration of such a drafter; default: four sliding layers and a full one."""
    from dflash_trainer.config.schema import DrafterConfig
    from dflash_trainer.config.target_shape import RANDOM_SHAPES
    from dflash_trainer.export.config_json import config_json
    from dflash_trainer.model.shape import drafter_shape
    from transformers import Qwen3Config

    section = DrafterConfig(
        mask_token_id=setting.mask_token,
        sliding_window=setting.window,
        layer_types=layer_types,  # type: ignore[arg-type]
        block_size=setting.block,
        num_heads=setting.heads,
        num_kv_heads=setting.kv_heads,
        head_dim=setting.head_dim,
    )
    values = config_json(drafter_shape(section, RANDOM_SHAPES[setting.target]), "bfloat16")
    config = Qwen3Config(**{key: value for key, value in values.items() if key != "dtype"})
    config._attn_implementation = setting.attention
    return config


def frozen_ends(setting: Setting) -> Ends:
    """Return random embedding and head of the target on the device, in bf16."""
    import torch
    from dflash_trainer.config.target_shape import RANDOM_SHAPES

    target = RANDOM_SHAPES[setting.target]
    with torch.device(setting.device):
        embed = torch.nn.Embedding(target.vocab_size, target.hidden_size, dtype=torch.bfloat16)
        head = torch.nn.Linear(target.hidden_size, target.vocab_size, bias=False, dtype=torch.bfloat16)
    return Ends(embed.requires_grad_(False), head.requires_grad_(False))
