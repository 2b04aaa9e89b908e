"""The frozen target: weights, forward pass up to the last captured layer, and CUDA graphs."""

from dflash_trainer.target.load import load_target
from dflash_trainer.target.target import Target

__all__ = ["Target", "load_target"]
