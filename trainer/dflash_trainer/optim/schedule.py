"""Learning-rate schedules and the number of steps of a run."""

from __future__ import annotations

import math

from dflash_trainer.config.schema import OptimizerConfig


def learning_rate(step: int, total: int, config: OptimizerConfig) -> float:
    """Return the learning rate of step `step` (from 1) of `total`.

    Linear warm-up, then cosine decay to zero, or (wsd) a stable phase and a linear decay to zero.
    """
    warmup = math.ceil(config.warmup_ratio * total)
    if step <= warmup:
        return config.lr * step / warmup
    if config.schedule == "cosine":
        done = (step - warmup) / max(1, total - warmup)
        return config.lr * 0.5 * (1.0 + math.cos(math.pi * min(1.0, done)))
    decay = math.ceil(config.decay_ratio * total)
    left = total - step
    return config.lr * min(1.0, left / decay) if decay else config.lr


def total_steps(batches_per_epoch: int, batches_per_step: int, config: OptimizerConfig) -> int:
    """Return the steps of the whole run: at least one, from the epochs, capped by max_steps."""
    by_epochs = max(1, config.epochs * batches_per_epoch // batches_per_step)
    return min(by_epochs, config.max_steps) if config.max_steps else by_epochs
