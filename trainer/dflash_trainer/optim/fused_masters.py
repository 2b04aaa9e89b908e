"""Masters of a bf16 replica on CUDA: AdamW in one pass over memory, directly from the replica's gradients.

`Masters` converts the gradients to fp32, clips them, steps and copies the result back: eight passes. Here one kernel
per weight reads gradient, weight and moments once and writes weight and moments once. The fp32 master is not stored
separately: the replica is its upper half (`split_fp32`).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from dflash_trainer.compilation import WorkerCompiler
from dflash_trainer.config.schema import OptimizerConfig
from dflash_trainer.optim.fused_step import StepNumbers, fused_step
from dflash_trainer.optim.masters import Masters
from dflash_trainer.optim.split_fp32 import join, split


class FusedMasters(Masters):
    """Weights and moments that one owner updates with a fused AdamW; state names are those of torch.optim.AdamW."""

    scales_on_device = True

    def __init__(
        self, replica: Mapping[str, Tensor], config: OptimizerConfig, *, borrows: bool, compiler: WorkerCompiler
    ) -> None:
        self.borrows = borrows
        self._compiler = compiler
        self._config = config
        self.weights = {name: weight.detach() for name, weight in replica.items()}
        self._lower = {name: torch.zeros_like(weight, dtype=torch.int16) for name, weight in self.weights.items()}
        summed = {} if borrows else self.weights
        self.sums = {name: torch.zeros_like(weight, dtype=torch.float32) for name, weight in summed.items()}
        self._borrowed: dict[str, Tensor] = {}
        self._create_state()

    def borrow(self, gradients: Mapping[str, Tensor]) -> None:
        """Use these gradients for the next norm() and update(), without a copy."""
        self._borrowed = dict(gradients)

    def gradients(self) -> list[Tensor]:
        """Return one gradient per weight, in the order of `weights`."""
        return [self._borrowed[name] for name in self.weights] if self.borrows else super().gradients()

    def norm(self) -> Tensor:
        """Return the L2 norm of all gradients of this owner in fp32, a scalar on the device."""
        norms = torch._foreach_norm(self.gradients(), 2.0, torch.float32)
        return torch.linalg.vector_norm(torch.stack(norms))

    def update(self, *, lr: float, scale: float | Tensor) -> None:
        """Take a step with learning rate `lr` on the gradients times `scale`, without synchronizing.

        With a scale of NaN, weights and moments do not change; call revert_step_count() afterwards.
        """
        config = self._config
        betas = (config.betas[0], config.betas[1])
        steps = int(next(iter(self._state.values()))["step"].item()) + 1
        numbers = self._numbers(lr, scale, *(1 - beta**steps for beta in betas))
        for (name, weight), gradient in zip(self.weights.items(), self.gradients(), strict=True):
            state = self._state[name]
            state["step"] += 1
            fused_step(
                weight,
                self._lower[name],
                state["exp_avg"],
                state["exp_avg_sq"],
                gradient,
                numbers,
                betas=betas,
                eps=config.eps,
                weight_decay=config.weight_decay if weight.ndim == 2 else 0.0,
                compiler=self._compiler,
            )
        self._borrowed = {}

    def revert_step_count(self) -> None:
        """Decrement the step count after an update with a scale of NaN."""
        for state in self._state.values():
            state["step"] -= 1

    def _numbers(self, *values: float | Tensor) -> StepNumbers:
        """Return the scalars, filled by kernels: a copy from the host would wait for all earlier work."""
        device = next(iter(self.weights.values())).device
        return StepNumbers(
            *(v if isinstance(v, Tensor) else torch.full((), v, dtype=torch.float32, device=device) for v in values)
        )

    def _master(self, name: str) -> Tensor:
        return join(self.weights[name].view(torch.int16), self._lower[name])

    def _set_master(self, name: str, master: Tensor) -> None:
        upper, lower = split(master.float())
        self.weights[name].view(torch.int16).copy_(upper)
        self._lower[name].copy_(lower)

    def _optimizer_state(self) -> dict[str, dict[str, Tensor]]:
        return self._state

    def _create_state(self) -> None:
        """Create zero moments, and compile the kernel by a step that changes nothing and is not counted."""
        dtype = getattr(torch, self._config.state_dtype)
        self._state = {
            name: {
                "step": torch.zeros((), dtype=torch.float32),
                "exp_avg": torch.zeros_like(weight, dtype=dtype),
                "exp_avg_sq": torch.zeros_like(weight, dtype=dtype),
            }
            for name, weight in self.weights.items()
        }
        if self.borrows:
            self.borrow({name: torch.zeros_like(weight) for name, weight in self.weights.items()})
        self.update(lr=0.0, scale=0.0)
        for state in self._state.values():
            state["step"].zero_()


def create_masters(
    replica: Mapping[str, Tensor], config: OptimizerConfig, *, borrows: bool, compiler: WorkerCompiler
) -> Masters:
    """Return fused masters for bf16 weights on CUDA with AdamW, plain masters otherwise.

    Args:
        replica: the owner's weights by name.
        config: the [optimizer] section.
        borrows: True when gradients are not summed over workers or nodes, so that they can be used in place.
        compiler: compiled functions of the owner.
    """
    weights = list(replica.values())
    fused = config.kind == "adamw" and all(w.is_cuda and w.dtype == torch.bfloat16 for w in weights)
    if fused and weights:
        return FusedMasters(replica, config, borrows=borrows, compiler=compiler)
    return Masters(replica, config)
