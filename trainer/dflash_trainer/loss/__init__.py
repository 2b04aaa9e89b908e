"""The training objective: slot weights, the frozen head with its cross-entropy, and acceptance metrics."""

from dflash_trainer.loss.loss import LossOutput, draft_loss

__all__ = ["LossOutput", "draft_loss"]
