"""Compare the loss and every gradient with SpecForge 0.2.0's OnlineDFlashModel, fp32 on the CPU.

    TRAINER_ENV/bin/python bench/specforge_equality.py [--json FILE]

Both get the same weights, token ids, hidden states and anchors. Run it in an environment with the trainer's
dependencies; SpecForge is installed into a separate venv. Exit code 1 if a relative error reaches 1e-5.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from peer_venv import run_in_peer_venv

REQUIREMENT = "specforge==0.2.0"
LIMIT = 1e-5
ROWS, LENGTH, ANCHORS, BLOCK, WINDOW = 3, 160, 24, 8, 48


@dataclass(frozen=True)
class Case:
    """An objective to compare."""

    name: str
    ours: dict[str, Any]
    theirs: dict[str, Any]


CASES = (
    Case("decay", {"kind": "decay", "gamma": 4.0}, {"loss_type": "dflash", "loss_decay_gamma": 4.0}),
    Case("dpace", {"kind": "dpace", "alpha": 0.5}, {"loss_type": "dpace", "dpace_alpha": 0.5}),
)


def main() -> int:
    """Compare, print and write the figures; return 0 if equal."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="file for the figures")
    arguments = parser.parse_args()
    run_in_peer_venv(REQUIREMENT)

    import torch
    import transformers

    results = [compare(case) for case in CASES]
    worst = max(result["worst"] for result in results)
    report = {
        "ok": worst < LIMIT,
        "peer": REQUIREMENT,
        "limit": LIMIT,
        "worst_relative_error": worst,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "shape": {"rows": ROWS, "length": LENGTH, "anchors": ANCHORS, "block": BLOCK, "window": WINDOW},
        "cases": results,
    }
    for result in results:
        print(
            f"{result['case']}: loss {result['loss']:.6f} (relative error {result['loss_error']:.1e}), "
            f"{result['gradients']} gradients, worst {result['worst_gradient']} {result['gradient_error']:.1e}"
        )
    print(f"worst relative error {worst:.1e}, limit {LIMIT:.0e}: {'equal' if report['ok'] else 'DIFFERENT'}")
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return 0 if report["ok"] else 1


def compare(case: Case) -> dict[str, Any]:
    """Compare sums of weighted losses and their gradients; the two divide D-PACE's sum by different counts."""
    import torch

    batch = make_batch()
    ours, our_gradients = our_sum(case, batch)
    theirs, their_gradients = their_sum(case, batch)
    errors = {
        name: float((our_gradients[name] - value).norm() / value.norm()) for name, value in their_gradients.items()
    }
    assert errors.keys() == our_gradients.keys(), "the two models have different tensor names"
    assert all(torch.isfinite(value).all() and value.norm() > 0 for value in their_gradients.values())
    worst = max(errors, key=lambda name: errors[name])
    loss_error = abs(ours - theirs) / abs(theirs)
    return {
        "case": case.name,
        "loss": ours / batch["weight"][case.name],
        "loss_error": loss_error,
        "gradients": len(errors),
        "worst_gradient": worst,
        "gradient_error": errors[worst],
        "worst": max(loss_error, errors[worst]),
    }


def make_batch() -> dict[str, Any]:
    """Return random weights, states and ids; rows with few answer tokens have masked anchor slots."""
    import torch
    from dflash_trainer.model.anchors import draw_anchors
    from dflash_trainer.model.build import initialise
    from dflash_trainer.model.drafter import Drafter

    generator = torch.Generator().manual_seed(7)
    drafter = Drafter(drafter_shape())
    initialise(drafter, 3)
    with torch.no_grad():
        for parameter in drafter.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.05)
    shape = drafter.shape
    mask = torch.ones(ROWS, LENGTH, dtype=torch.int64)
    mask[:, :20] = 0
    mask[1, 30:60] = 0
    mask[2, 33:] = 0
    anchors, valid = draw_anchors(mask, ANCHORS, generator)
    assert not valid.all()
    width = len(shape.target_layer_ids) * shape.hidden_size
    return {
        "drafter": drafter,
        "ids": torch.randint(shape.vocab_size, (ROWS, LENGTH), generator=generator),
        "mask": mask,
        "states": torch.randn(ROWS, LENGTH, width, generator=generator),
        "anchors": anchors,
        "valid": valid,
        "embed": torch.randn(shape.vocab_size, shape.hidden_size, generator=generator),
        "head": torch.randn(shape.vocab_size, shape.hidden_size, generator=generator) * 0.1,
        "weight": {},
    }


def drafter_shape() -> Any:
    """Return a shape with sliding and full layers, grouped-query attention and head_dim != hidden / heads."""
    from dflash_trainer.model.shape import DrafterShape

    return DrafterShape(
        hidden_size=96,
        intermediate_size=160,
        num_heads=4,
        num_kv_heads=2,
        head_dim=32,
        vocab_size=512,
        layer_types=("sliding_attention", "sliding_attention", "full_attention"),
        sliding_window=WINDOW,
        rope_theta=1e7,
        rms_norm_eps=1e-6,
        block_size=BLOCK,
        mask_token_id=511,
        target_layer_ids=(1, 5, 9),
        num_target_layers=12,
        max_positions=4096,
    )


def our_sum(case: Case, batch: dict[str, Any]) -> tuple[float, dict[str, Any]]:
    """Return this trainer's sum of weighted losses and its gradients by name."""
    from dflash_trainer.config.schema import ObjectiveConfig
    from dflash_trainer.loss import draft_loss

    drafter = batch["drafter"]
    drafter.zero_grad(set_to_none=True)
    output = draft_loss(
        drafter,
        batch["embed"],
        batch["head"],
        batch["states"],
        batch["ids"],
        batch["mask"],
        batch["anchors"],
        batch["valid"],
        ObjectiveConfig(num_anchors=ANCHORS, head_chunk=64, **case.ours),
    )
    total = output.loss * output.weight
    total.backward()
    batch["weight"][case.name] = float(output.weight)
    return total.item(), {name: parameter.grad.clone() for name, parameter in drafter.named_parameters()}


def their_sum(case: Case, batch: dict[str, Any]) -> tuple[float, dict[str, Any]]:
    """Return the same of SpecForge's model, with our anchors instead of its own."""
    import torch
    from dflash_trainer.export.config_json import config_json
    from specforge.algorithms.common.dflash_family_model import OnlineDFlashModel
    from specforge.modeling.draft.dflash import DFlashDraftModel
    from transformers.models.qwen3.modeling_qwen3 import Qwen3Config

    shape = batch["drafter"].shape
    values = config_json(shape, "float32")
    config = Qwen3Config(**{key: value for key, value in values.items() if key != "dtype"})
    config._attn_implementation = "eager"
    draft = DFlashDraftModel(config).float()
    draft.load_state_dict(batch["drafter"].state_dict(), strict=True)
    ends = {}
    for name in ("embed", "head"):
        ends[name] = torch.nn.Parameter(batch[name], requires_grad=False)
    head = torch.nn.Linear(shape.hidden_size, shape.vocab_size, bias=False)
    head.weight = ends["head"]
    embed = torch.nn.Embedding(shape.vocab_size, shape.hidden_size, _weight=batch["embed"])
    embed.weight = ends["embed"]
    model = OnlineDFlashModel(
        draft,
        head,
        embed,
        mask_token_id=shape.mask_token_id,
        block_size=shape.block_size,
        attention_backend="eager",
        num_anchors=ANCHORS,
        **case.theirs,
    )
    model._sample_anchor_positions = lambda *unused: (batch["anchors"], batch["valid"])
    loss, _, metrics = model(batch["ids"], batch["states"], batch["mask"].float())
    total = loss * metrics["loss_terms"][1]
    total.backward()
    return total.item(), {name: parameter.grad for name, parameter in draft.named_parameters()}


if __name__ == "__main__":
    sys.exit(main())
