"""The frozen target: its weights, a forward pass to the last captured layer, and CUDA graphs of it."""

from dflash_trainer.target.load import load_target
from dflash_trainer.target.target import Target

__all__ = ["Target", "load_target"]
