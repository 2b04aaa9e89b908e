"""Measure the drafter step of NeMo Automodel 0.7.0 on the shapes of `bench drafter`; needs a GPU.

    TRAINER_ENV/bin/python bench/nemo_speed.py [--json FILE] [--length 4096]

This runs NeMo's draft model, anchors, compiled block mask and objective (flex_attention, unchunked logits) as its
DFlash recipe builds them, with gradient clipping and AdamW on bf16 weights. All differences from the recipe favour
NeMo: the recipe has one mask for all layers, so all five layers are sliding (less work than four sliding and one full);
AdamW is torch's fused one; loss and accuracy are not read back. `--tiny` tests the script on a CPU.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from peer_step import Peer, Setting, drafter_config, frozen_ends, run

_DFLASH = "nemo_automodel.components.speculative.dflash"
_PACKING = "nemo_automodel.components.datasets.llm.packed_sequence"


def build(setting: Setting) -> Peer:
    """Build NeMo's training module with random weights."""
    import torch

    _skip_other_recipes()
    from nemo_automodel.components.speculative.dflash.core import DFlashTrainerModule
    from nemo_automodel.components.speculative.dflash.draft_qwen3 import Qwen3DFlashDraftModel

    with torch.device(setting.device):
        drafter = Qwen3DFlashDraftModel(drafter_config(setting, ("sliding_attention",) * 5)).to(torch.bfloat16)
    ends = frozen_ends(setting)
    module = DFlashTrainerModule(
        draft_model=drafter,
        target_lm_head=ends.head,
        target_embed_tokens=ends.embed,
        mask_token_id=setting.mask_token,
        block_size=setting.block,
        attention_backend=setting.attention,
        num_anchors=setting.anchors,
        loss_decay_gamma=7.0,
        sliding_window=setting.window,
    ).to(setting.device)
    module.train()
    return Peer(lambda ids, states, mask: module(ids, states, mask).loss, drafter, (0.9, 0.95))


def _skip_other_recipes() -> None:
    """Import only the modules of the step, unchanged; they need torch and transformers only.

    The DFlash package imports all its drafters (Kimi's needs NeMo's model library), and the module that captures the
    target's states imports the data sets for one function of packed batches. Neither is part of the step.
    """
    root = importlib.util.find_spec("nemo_automodel")
    assert root is not None
    assert root.origin is not None
    package = ModuleType(_DFLASH)
    package.__path__ = [str(Path(root.origin).parent.joinpath(*_DFLASH.split(".")[1:]))]
    packing = ModuleType(_PACKING)
    packing.build_block_causal_additive_mask = None  # type: ignore[attr-defined]
    sys.modules[_DFLASH], sys.modules[_PACKING] = package, packing


if __name__ == "__main__":
    sys.exit(run(__doc__ or "", "nemo-automodel==0.7.0", build))
