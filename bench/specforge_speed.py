"""The drafter's step of SpecForge 0.2.0 on the shapes of `bench drafter`; needs a GPU.

    TRAINER_ENV/bin/python bench/specforge_speed.py [--json FILE] [--length 4096]

SpecForge's own model, masks and objective (flex_attention, chunked and checkpointed head), gradients clipped and
torch's fused AdamW on its bf16 weights, as its trainer keeps them. Run it next to `bench drafter` for a comparison.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from peer_venv import run_beside

REQUIREMENT = "specforge==0.2.0"
HIDDEN, VOCAB, ANCHORS, BLOCK = 5120, 248320, 512, 16


def main() -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="file for the figures")
    parser.add_argument("--length", type=int, default=4096, help="context tokens")
    parser.add_argument("--repeats", type=int, default=12, help="steps that count")
    arguments = parser.parse_args()
    run_beside(REQUIREMENT)
    result = measure(arguments.length, arguments.repeats)
    print(json.dumps(result), flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    return 0


def measure(length: int, repeats: int) -> dict[str, Any]:
    """Median step and peak memory."""
    import torch
    from dflash_trainer.bench.measure import machine, peak_gb, reset_peak, time_call

    device = torch.device("cuda")
    model = online_model(device)
    parameters = list(model.draft_model.parameters())
    optimizer = torch.optim.AdamW(parameters, lr=6e-4, weight_decay=0.0, fused=True)
    ids = torch.randint(VOCAB, (1, length), device=device)
    states = torch.randn(1, length, 5 * HIDDEN, device=device, dtype=torch.bfloat16)
    mask = torch.ones(1, length, device=device)

    def step() -> None:
        loss = model(input_ids=ids, hidden_states=states, loss_mask=mask)[0]
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    step()
    step()
    reset_peak(device)
    timing = time_call(step, device, repeats=repeats)
    return {
        "peer": REQUIREMENT,
        **machine(device),
        "length": length,
        "step_ms": timing.total_ms,
        "step_ms_range": [timing.fastest_ms, timing.slowest_ms],
        "peak_gb": peak_gb(device),
    }


def online_model(device: Any) -> Any:
    """SpecForge's training model on the 27B shapes with random weights."""
    import torch
    from dflash_trainer.config import DrafterConfig
    from dflash_trainer.export.config_json import config_json
    from dflash_trainer.model.shape import drafter_shape
    from dflash_trainer.target_shape import RANDOM_SHAPES
    from specforge.algorithms.common.dflash_family_model import OnlineDFlashModel
    from specforge.modeling.draft.dflash import DFlashDraftModel
    from transformers.models.qwen3.modeling_qwen3 import Qwen3Config

    section = DrafterConfig(mask_token_id=248070, sliding_window=2048, num_heads=32, num_kv_heads=8, head_dim=128)
    values = config_json(drafter_shape(section, RANDOM_SHAPES["qwen3.6-27b"]), "bfloat16")
    config = Qwen3Config(**{key: value for key, value in values.items() if key != "dtype"})
    config._attn_implementation = "flex_attention"
    with torch.device(device):
        draft = DFlashDraftModel(config).to(torch.bfloat16)
        head = torch.nn.Linear(HIDDEN, VOCAB, bias=False, dtype=torch.bfloat16).requires_grad_(False)
        embed = torch.nn.Embedding(VOCAB, HIDDEN, dtype=torch.bfloat16).requires_grad_(False)
    return OnlineDFlashModel(
        draft_model=draft,
        target_lm_head=head,
        target_embed_tokens=embed,
        mask_token_id=248070,
        block_size=BLOCK,
        attention_backend="flex_attention",
        num_anchors=ANCHORS,
        loss_decay_gamma=7.0,
    )


if __name__ == "__main__":
    sys.exit(main())
