"""AdamW with both moments stored in bf16; computes in fp32, one parameter at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor


class SmallAdamW(torch.optim.Optimizer):
    """AdamW with half the optimizer memory; state names are those of torch.optim.AdamW."""

    def __init__(
        self, params: Iterable[Tensor], *, lr: float, betas: tuple[float, float], eps: float, weight_decay: float
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, group)

    def _update(self, parameter: Tensor, group: dict[str, Any]) -> None:
        state = self.state[parameter]
        if not state:
            state["step"] = torch.zeros((), dtype=torch.float32)
            state["exp_avg"] = torch.zeros_like(parameter, dtype=torch.bfloat16)
            state["exp_avg_sq"] = torch.zeros_like(parameter, dtype=torch.bfloat16)
        state["step"] += 1
        step, (beta1, beta2) = state["step"].item(), group["betas"]
        gradient = parameter.grad
        assert gradient is not None
        first = state["exp_avg"].float().lerp_(gradient, 1 - beta1)
        second = state["exp_avg_sq"].float().mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        state["exp_avg"].copy_(first)
        state["exp_avg_sq"].copy_(second)
        denominator = second.div_(1 - beta2**step).sqrt_().add_(group["eps"])
        parameter.mul_(1 - group["lr"] * group["weight_decay"])
        parameter.addcdiv_(first, denominator, value=-group["lr"] / (1 - beta1**step))
