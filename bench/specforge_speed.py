"""Measure the drafter step of SpecForge 0.2.0 on the shapes of `bench drafter`; needs a GPU.

    TRAINER_ENV/bin/python bench/specforge_speed.py [--json FILE] [--length 4096]

This runs SpecForge's model, masks and objective (flex_attention, chunked and checkpointed head) with gradient clipping
and torch's fused AdamW on bf16 weights, as its trainer keeps them. `--tiny` tests the script on a CPU.
"""

from __future__ import annotations

import sys

from peer_step import Peer, Setting, drafter_config, frozen_ends, run


def build(setting: Setting) -> Peer:
    """Build SpecForge's training model with random weights."""
    import torch
    from specforge.algorithms.common.dflash_family_model import OnlineDFlashModel
    from specforge.modeling.draft.dflash import DFlashDraftModel

    with torch.device(setting.device):
        drafter = DFlashDraftModel(drafter_config(setting)).to(torch.bfloat16)
    ends = frozen_ends(setting)
    model = OnlineDFlashModel(
        draft_model=drafter,
        target_lm_head=ends.head,
        target_embed_tokens=ends.embed,
        mask_token_id=setting.mask_token,
        block_size=setting.block,
        attention_backend=setting.attention,
        num_anchors=setting.anchors,
        loss_decay_gamma=7.0,
    )
    return Peer(lambda ids, states, mask: model(ids, states, mask)[0], drafter, (0.9, 0.999))


if __name__ == "__main__":
    sys.exit(run(__doc__ or "", "specforge==0.2.0", build))
