"""Matmuls with the frozen head in fp8 with per-row scales: half the time, at a small error."""

# Tensor letters: see dflash_trainer/__init__.py.

from __future__ import annotations

import torch
from torch import Tensor

from dflash_trainer.compilation import WorkerCompiler
from dflash_trainer.errors import ConfigError

_FP8 = torch.float8_e4m3fn
_LARGEST = 448.0


class Fp8Head:
    """Two fp8 copies of the head, one laid out for each matmul; together as large as one bf16 copy."""

    def __init__(self, weight_VD: Tensor, compiler: WorkerCompiler) -> None:
        if not weight_VD.is_cuda or torch.cuda.get_device_capability(weight_VD.device) < (8, 9):
            raise ConfigError(
                "objective.head_precision", "fp8", f"{weight_VD.device} has no fp8 matmul", 'use "dtype"'
            )
        self.by_token_VD, self.token_scale_V = _quantise_rows(weight_VD)
        self.by_feature_DV, self.feature_scale_D = _quantise_rows(weight_VD.t())
        self.dtype = weight_VD.dtype
        self._quantise = compiler.compiled(_quantise_rows)

    def logits(self, hidden_MD: Tensor) -> Tensor:
        """Return logits [M, V] of hidden states."""
        return self._product(hidden_MD, self.by_token_VD, self.token_scale_V)

    def input_gradient(self, gradient_MV: Tensor) -> Tensor:
        """Return the gradient of the hidden states, [M, D], from that of the logits."""
        return self._product(gradient_MV, self.by_feature_DV, self.feature_scale_D)

    def _product(self, left: Tensor, right: Tensor, right_scale: Tensor) -> Tensor:
        """Return left @ right.T; `left` is quantised on the fly."""
        quantised, scale = self._quantise(left)
        return torch._scaled_mm(
            quantised, right.t(), scale_a=scale[:, None], scale_b=right_scale[None, :], out_dtype=self.dtype
        )


def _quantise_rows(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Scale each row of a matrix to the range of fp8; returns (contiguous fp8 matrix, fp32 scale per row)."""
    largest = matrix.abs().amax(-1).float().clamp(min=1e-12)
    scale = largest / _LARGEST
    quantised = (matrix.float() / scale[:, None]).clamp(-_LARGEST, _LARGEST).to(_FP8)
    return quantised.contiguous(), scale
