"""The drafter model: its layers, attention masks, anchors and draft blocks."""

from dflash_trainer.model.build import build_drafter
from dflash_trainer.model.drafter import Drafter
from dflash_trainer.model.shape import DrafterShape

__all__ = ["Drafter", "DrafterShape", "build_drafter"]
