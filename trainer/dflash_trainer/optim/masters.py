"""Fp32 masters of a subset of the weights, with their gradients and optimizers; one owner, one device."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor
from torch.optim import Optimizer

from dflash_trainer.config.schema import OptimizerConfig
from dflash_trainer.errors import InputError
from dflash_trainer.optim.small_adamw import SmallAdamW


class Masters:
    """Weights that one owner updates. An fp32 replica is its own master; a bf16 replica has an fp32 copy."""

    borrows = False
    """True when gradients come from borrow() and are not summed in `sums`."""
    scales_on_device = False
    """True when update() accepts a scale still being computed on the device, and changes nothing if it is NaN."""

    def __init__(self, replica: Mapping[str, Tensor], config: OptimizerConfig) -> None:
        self._config = config
        self.weights: dict[str, Tensor] = {
            name: weight.detach() if weight.dtype == torch.float32 else weight.detach().float()
            for name, weight in replica.items()
        }
        """Updated weights by name; the replicas copy them."""
        self.sums: dict[str, Tensor] = {name: torch.zeros_like(weight) for name, weight in self.weights.items()}
        """Fp32 gradient sums by name; empty when gradients are borrowed."""
        for name, weight in self.weights.items():
            weight.grad = self.sums[name]
        self._optimizers = _optimizers(self.weights, config)
        self._create_state()

    def gradients(self) -> list[Tensor]:
        """Return one gradient per weight, in the order of `weights`."""
        return list(self.sums.values())

    def borrow(self, gradients: Mapping[str, Tensor]) -> None:
        """Use these gradients for the next norm() and update(), without a copy."""
        raise AssertionError("these masters do not borrow gradients")

    def norm(self) -> Tensor:
        """Return the L2 norm of all gradients of this owner, a scalar on the device."""
        return torch.nn.utils.get_total_norm(self.gradients())

    def update(self, *, lr: float, scale: float | Tensor) -> None:
        """Multiply the gradients by `scale` and take a step with learning rate `lr`."""
        torch._foreach_mul_(self.gradients(), scale)
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                group["lr"] = lr
            optimizer.step()

    def revert_step_count(self) -> None:
        """Decrement the step count after an update with a scale of NaN."""
        raise AssertionError("these masters need a finite scale from the host")

    def state(self) -> Iterator[tuple[str, Tensor]]:
        """Yield masters and optimizer state as named tensors: `NAME/master`, `NAME/exp_avg` and so on."""
        states = self._optimizer_state()
        for name in self.weights:
            yield f"{name}/master", self._master(name)
            for key, value in sorted(states[name].items()):
                yield f"{name}/{key}", value

    @torch.no_grad()
    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Load tensors saved from `state`. Raises InputError when one is missing or has another shape."""
        for name, value in self.state():
            found = tensors.get(name)
            if found is None or found.shape != value.shape:
                problem = "is missing" if found is None else f"has shape {tuple(found.shape)}, not {tuple(value.shape)}"
                raise InputError(
                    f"checkpoint: optimizer tensor {name} {problem}",
                    "resume with the configuration of the checkpoint, or start from its weights with drafter.init_from",
                )
            if name.endswith("/master"):
                self._set_master(name.removesuffix("/master"), found)
            else:
                value.copy_(found)

    def _master(self, name: str) -> Tensor:
        """Return the fp32 master of a weight."""
        return self.weights[name]

    def _set_master(self, name: str, master: Tensor) -> None:
        self.weights[name].copy_(master)

    def _optimizer_state(self) -> dict[str, dict[str, Tensor]]:
        states = {id(p): s for optimizer in self._optimizers for p, s in optimizer.state.items()}
        return {name: states[id(weight)] for name, weight in self.weights.items()}

    def _create_state(self) -> None:
        """Allocate the optimizer state now, by a step that changes nothing."""
        self.update(lr=0.0, scale=0.0)
        for state in self._optimizer_state().values():
            for value in state.values():
                value.zero_()


def _optimizers(weights: Mapping[str, Tensor], config: OptimizerConfig) -> list[Optimizer]:
    matrices = [weight for weight in weights.values() if weight.ndim == 2]
    rest = [weight for weight in weights.values() if weight.ndim != 2]
    groups: list[Optimizer] = []
    if matrices and config.kind == "muon":
        muon = torch.optim.Muon(
            matrices, lr=0.0, weight_decay=config.weight_decay, momentum=0.95, adjust_lr_fn="match_rms_adamw"
        )
        groups.append(muon)
    elif matrices:
        groups.append(_adamw(matrices, config, config.weight_decay))
    if rest:
        groups.append(_adamw(rest, config, 0.0))
    return groups


def _adamw(weights: list[Tensor], config: OptimizerConfig, weight_decay: float) -> Optimizer:
    betas = (config.betas[0], config.betas[1])
    if config.state_dtype == "bfloat16":
        return SmallAdamW(weights, lr=0.0, betas=betas, eps=config.eps, weight_decay=weight_decay)
    return torch.optim.AdamW(weights, lr=0.0, betas=betas, eps=config.eps, weight_decay=weight_decay, fused=True)
