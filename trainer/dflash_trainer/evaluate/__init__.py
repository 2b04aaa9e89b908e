"""How good a trained drafter is: on held-out text, and in real speculative decoding with its target."""

from dflash_trainer.evaluate.evaluate import EvaluationJob, evaluate

__all__ = ["EvaluationJob", "evaluate"]
