"""Evaluation of a trained drafter: held-out text, and real speculative decoding with its target."""

from dflash_trainer.evaluate.evaluate import EvaluationJob, evaluate

__all__ = ["EvaluationJob", "evaluate"]
