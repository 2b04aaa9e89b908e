"""Check exports against the published package `dflash` 0.1.0: they load, and both models draft the same.

    TRAINER_ENV/bin/python bench/published_loader.py [--json FILE]

For every target family, with and without sliding layers: export random weights, load them with the package (no missing
or unexpected tensor) and draft blocks at several anchors with both models, fp32 on the CPU. Run it in an environment
with the trainer's dependencies; the package is installed into a separate venv.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from peer_venv import run_in_peer_venv

REQUIREMENT = "dflash==0.1.0"
LIMIT = 1e-5
LENGTH, ANCHORS, BLOCK = 90, (1, 2, 30, 47, 80), 8
TARGETS = ("tiny", "qwen3-tiny", "qwen3.6-tiny")
WINDOWS = (0, 24)


def main() -> int:
    """Compare, print and write the figures; return 0 if equal."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="file for the figures")
    arguments = parser.parse_args()
    run_in_peer_venv(REQUIREMENT)

    import torch
    import transformers

    with tempfile.TemporaryDirectory() as folder:
        results = [compare(target, window, Path(folder)) for target in TARGETS for window in WINDOWS]
    worst = max(result["relative_error"] for result in results)
    ok = worst < LIMIT and all(result["dtype_kept"] for result in results)
    report = {
        "ok": ok,
        "peer": REQUIREMENT,
        "limit": LIMIT,
        "worst_relative_error": worst,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "cases": results,
    }
    for result in results:
        print(
            f"{result['target']} window {result['window']}: {result['tensors']} tensors loaded, "
            f"{len(ANCHORS)} blocks, relative error {result['relative_error']:.1e}"
        )
    print(f"worst relative error {worst:.1e}, limit {LIMIT:.0e}: {'equal' if ok else 'DIFFERENT'}")
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return 0 if ok else 1


def compare(target: str, window: int, scratch: Path) -> dict[str, Any]:
    """Export, load with the package, draft with both models."""
    import torch
    from dflash import DFlashDraftModel
    from dflash_trainer.checkpoint.tensors import write_tensors
    from dflash_trainer.checkpoint.trained_drafter import find_trained
    from dflash_trainer.config.target_shape import locate, read_shape
    from dflash_trainer.export import export_drafter
    from dflash_trainer.model import build_drafter

    config = configuration(target, window)
    ours = build_drafter(config, read_shape(locate(config.target.path)))
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in ours.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.05)
    checkpoint = scratch / f"{target}-{window}"
    checkpoint.mkdir()
    write_tensors(checkpoint / "model.safetensors", ours.state_dict())
    folders = {}
    for dtype in ("float32", "bfloat16"):
        folders[dtype] = scratch / f"{target}-{window}-{dtype}"
        export_drafter(config, find_trained(checkpoint), folders[dtype], dtype)
    theirs, info = DFlashDraftModel.from_pretrained(folders["float32"], output_loading_info=True)
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys")), info
    small = DFlashDraftModel.from_pretrained(folders["bfloat16"], dtype="auto")
    assert (theirs.block_size, theirs.mask_token_id) == (BLOCK, config.drafter.mask_token_id)
    assert tuple(theirs.target_layer_ids) == ours.shape.target_layer_ids
    return {
        "target": target,
        "window": window,
        "tensors": len(theirs.state_dict()),
        "dtype_kept": all(p.dtype == torch.bfloat16 for p in small.parameters()),
        "relative_error": relative_error(ours, theirs.eval(), generator),
    }


def configuration(target: str, window: int) -> Any:
    """Return a drafter configuration whose rotary base, head size and heads differ from the target's."""
    from dflash_trainer.config.load import config_from_dict

    drafter = {"mask_token_id": 3, "dtype": "float32", "num_layers": 3, "block_size": BLOCK, "num_captured": 3}
    drafter |= {"sliding_window": window, "rope_theta": 3e5, "head_dim": 32, "num_heads": 4, "num_kv_heads": 2}
    tables = {"target": {"path": f"random:{target}", "dtype": "float32"}, "drafter": drafter}
    return config_from_dict(tables, base=Path.cwd())


def relative_error(ours: Any, theirs: Any, generator: Any) -> float:
    """Return the largest relative difference of a block's drafted hidden states."""
    import torch
    from torch.nn import functional

    shape = ours.shape
    ids = torch.randint(shape.vocab_size, (1, LENGTH), generator=generator)
    embed = torch.randn(shape.vocab_size, shape.hidden_size, generator=generator)
    states = torch.randn(1, LENGTH, len(shape.target_layer_ids) * shape.hidden_size, generator=generator)
    anchors = torch.tensor([ANCHORS])
    blocks = torch.full((len(ANCHORS), BLOCK), shape.mask_token_id)
    blocks[:, 0] = ids[0, anchors[0]]
    tokens = functional.pad(ids[:, anchors[0]], (0, 1), value=shape.mask_token_id)
    with torch.no_grad():
        drafted = ours(functional.embedding(tokens, embed), states, anchors, torch.ones_like(anchors) > 0)
        drafted = drafted.view(len(ANCHORS), BLOCK - 1, -1)
        errors = []
        for number, anchor in enumerate(ANCHORS):
            other = theirs(
                position_ids=torch.arange(anchor + BLOCK)[None],
                noise_embedding=functional.embedding(blocks[number : number + 1], embed),
                target_hidden=states[:, :anchor],
            )[0, 1:]
            errors.append(float((drafted[number] - other).norm() / other.norm()))
    return max(errors)


if __name__ == "__main__":
    sys.exit(main())
