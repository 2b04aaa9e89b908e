"""Selection of the delta rule: fused kernels on CUDA, and an error instead of a silent slow fallback."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dflash_trainer.errors import ConfigError
from dflash_trainer.target.delta_net import DeltaRule, RuleInputs, reference_delta_rule


def delta_rule_for(device: torch.device, fast_path: str) -> DeltaRule:
    """Return the delta rule for `device`: fused on CUDA, the reference on the CPU.

    On CUDA the reference is used only when the kernels cannot be imported and `fast_path` is "allow_slow".

    Raises:
        ConfigError: the fused kernels are required and cannot be imported.
    """
    if device.type != "cuda":
        return reference_delta_rule
    try:
        return _fused_delta_rule()
    except (ImportError, AttributeError, RuntimeError) as error:
        if fast_path == "allow_slow":
            return reference_delta_rule
        raise ConfigError(
            "target.fast_path",
            fast_path,
            f"flash-linear-attention cannot be imported ({error})",
            'install flash-linear-attention and fla-core, or use "allow_slow" to accept a slow target',
        ) from error


def _fused_delta_rule() -> DeltaRule:
    from fla.ops.gated_delta_rule import chunk_gated_delta_rule

    kernel: Any = chunk_gated_delta_rule

    def fused(inputs: RuleInputs, memory: Tensor | None = None, keep: bool = False) -> tuple[Tensor, Tensor | None]:
        output, after = kernel(
            inputs.q,
            inputs.k,
            inputs.v,
            g=inputs.decay,
            beta=inputs.beta,
            initial_state=memory,
            output_final_state=keep,
        )
        return output, after

    return fused
