"""The frozen head's products in 8-bit floats, scaled by row and column: half the time, at a small error."""

# Tensor letters: see dflash_trainer.model.

from __future__ import annotations

import torch
from torch import Tensor

from dflash_trainer.compilation import WorkerCompiler
from dflash_trainer.errors import ConfigError

_FP8 = torch.float8_e4m3fn
_LARGEST = 448.0


class Fp8Head:
    """Holds the head twice in fp8, laid out for each product: as many bytes as once in bf16."""

    def __init__(self, weight_VD: Tensor, compiler: WorkerCompiler) -> None:
        if not weight_VD.is_cuda or torch.cuda.get_device_capability(weight_VD.device) < (8, 9):
            raise ConfigError(
                "objective.head_precision", "fp8", f"{weight_VD.device} has no fp8 products", 'use "dtype"'
            )
        self.by_token_VD, self.token_scale_V = _quantise_rows(weight_VD)
        self.by_feature_DV, self.feature_scale_D = _quantise_rows(weight_VD.t())
        self.dtype = weight_VD.dtype
        self._quantise = compiler.compiled(_quantise_rows)

    def logits(self, hidden_MD: Tensor) -> Tensor:
        return self._product(hidden_MD, self.by_token_VD, self.token_scale_V)

    def input_gradient(self, gradient_MV: Tensor) -> Tensor:
        return self._product(gradient_MV, self.by_feature_DV, self.feature_scale_D)

    def _product(self, left: Tensor, right: Tensor, right_scale: Tensor) -> Tensor:
        """left @ right.T, left quantised on the fly."""
        small, scale = self._quantise(left)
        return torch._scaled_mm(
            small, right.t(), scale_a=scale[:, None], scale_b=right_scale[None, :], out_dtype=self.dtype
        )


def _quantise_rows(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Rows scaled to fp8's range: (values [A, B] fp8, contiguous; scale [A] fp32)."""
    largest = matrix.abs().amax(-1).float().clamp(min=1e-12)
    scale = largest / _LARGEST
    small = (matrix.float() / scale[:, None]).clamp(-_LARGEST, _LARGEST).to(_FP8)
    return small.contiguous(), scale
