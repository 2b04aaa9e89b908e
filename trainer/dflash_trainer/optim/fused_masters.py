"""Masters of a bf16 replica on CUDA: AdamW in one pass over memory, straight from the replica's gradients.

`Masters` widens the gradients to fp32, clips them, steps and copies back: eight passes. Here one kernel a weight reads
gradient, weight and moments once and writes weight and moments. The fp32 master has no tensor of its own: the replica
is its upper half (`split_fp32`).
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
    """The weights an owner updates, with their moments. State names are those of torch.optim.AdamW."""

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
        """Use these gradients in the next norm and update, without copying them."""
        self._borrowed = dict(gradients)

    def gradients(self) -> list[Tensor]:
        """Gradients, one a weight, in the order of `weights`."""
        return [self._borrowed[name] for name in self.weights] if self.borrows else super().gradients()

    def norm(self) -> Tensor:
        """Euclidean norm of this part's gradient in fp32, a scalar on the device."""
        norms = torch._foreach_norm(self.gradients(), 2.0, torch.float32)
        return torch.linalg.vector_norm(torch.stack(norms))

    def update(self, *, lr: float, scale: float | Tensor) -> None:
        """Take a step with rate `lr` on the gradients times `scale`.

        Nothing waits for the device. A scale that is NaN there changes no weight and no moment: call undo_step() then.
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

    def undo_step(self) -> None:
        """Do not count the last update."""
        for state in self._state.values():
            state["step"] -= 1

    def _numbers(self, *values: float | Tensor) -> StepNumbers:
        """Filled by kernels: a copy from the host would wait for all work launched before."""
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

    def _state_of(self) -> dict[str, dict[str, Tensor]]:
        return self._state

    def _create_state(self) -> None:
        """Zero moments, and the kernel compiled: a step of rate 0 on gradients of 0 that is then forgotten."""
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


def make_masters(
    replica: Mapping[str, Tensor], config: OptimizerConfig, *, borrows: bool, compiler: WorkerCompiler
) -> Masters:
    """Fused where it applies: bf16 on CUDA with AdamW.

    Args:
        borrows: gradients need no summing over workers or boxes.
        compiler: the owner's.
    """
    weights = list(replica.values())
    fused = config.kind == "adamw" and all(w.is_cuda and w.dtype == torch.bfloat16 for w in weights)
    if fused and weights:
        return FusedMasters(replica, config, borrows=borrows, compiler=compiler)
    return Masters(replica, config)
