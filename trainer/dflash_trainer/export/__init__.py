"""Export a trained drafter in the published layout: config.json and model.safetensors, verified after writing."""

from dflash_trainer.export.export import Exported, export_drafter

__all__ = ["Exported", "export_drafter"]
