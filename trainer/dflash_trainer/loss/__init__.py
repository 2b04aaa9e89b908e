"""The training objective: weights of slots, the frozen head with its loss, and what is measured on the way."""

from dflash_trainer.loss.loss import LossOutput, draft_loss

__all__ = ["LossOutput", "draft_loss"]
