"""The drafter: its layers, masks, anchors and the blocks it drafts."""

from dflash_trainer.model.build import build_drafter
from dflash_trainer.model.drafter import Drafter
from dflash_trainer.model.shape import DrafterShape

__all__ = ["Drafter", "DrafterShape", "build_drafter"]
