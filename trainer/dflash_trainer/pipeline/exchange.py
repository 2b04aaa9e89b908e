"""Average gradients over drafters and nodes, step the optimizer, and broadcast the new weights.

Each weight has one owner: the drafter worker that holds its fp32 master and optimizer state. The weights are divided
evenly among the owners. Sums run in worker order, so the result does not depend on thread timing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Concatenate, NamedTuple, ParamSpec, TypeVar

import torch
from torch import Tensor

from dflash_trainer.config.schema import OptimizerConfig
from dflash_trainer.optim.clipping import device_scale, host_scale
from dflash_trainer.optim.fused_masters import create_masters
from dflash_trainer.optim.masters import Masters
from dflash_trainer.optim.owners import partition_weights
from dflash_trainer.pipeline.async_host_copy import AsyncHostCopy
from dflash_trainer.pipeline.drafter_worker import DrafterWorker
from dflash_trainer.pipeline.node_group import NodeGroup

P = ParamSpec("P")
T = TypeVar("T")


class _Norm(NamedTuple):
    """Norm of the part of the summed gradient that one owner holds."""

    scalar: Tensor
    on_host: AsyncHostCopy


class Exchange:
    """Masters of all owners and the transfers between replicas; runs in the drafters' threads."""

    def __init__(self, drafters: Sequence[DrafterWorker], nodes: NodeGroup, config: OptimizerConfig) -> None:
        self._drafters = drafters
        self._nodes = nodes
        self._clip = config.clip
        parts = partition_weights({name: p.numel() for name, p in drafters[0].parameters.items()}, len(drafters))
        single = len(drafters) == 1 and nodes.world_size == 1
        # Serial: on CUDA this compiles the optimizer's kernel.
        self.masters: list[Masters] = [
            drafter.submit(
                create_masters,
                {name: drafter.parameters[name] for name in names},
                config,
                borrows=single,
                compiler=drafter.drafter.compiler,
            ).result()
            for drafter, names in zip(drafters, parts, strict=True)
        ]

    def step(self, *, lr: float, weight: float) -> float:
        """Step on the clipped mean gradient (the sum divided by `weight`) and copy the new weights to every replica.

        Returns:
            the norm of the mean gradient. When it is NaN or Inf, no weight changes.
        """
        self._each_owner(self._sum_drafters)
        for masters in self.masters:
            self._nodes.all_reduce_(masters.gradients())
        norms = self._each_owner(self._norm_of_owner)
        launched = all(masters.scales_on_device for masters in self.masters)
        if launched:
            self._each_owner(self._step_after_norms, lr, weight, [norm.scalar for norm in norms])
        norm = _mean_norm(norms, weight)
        if launched and not math.isfinite(norm):
            for masters in self.masters:
                masters.revert_step_count()
        elif not launched and math.isfinite(norm):
            self._each_owner(self._step_owner, lr, host_scale(norm, weight=weight, clip=self._clip))
        return norm

    def copy_weights(self) -> None:
        """Copy the masters into every replica."""
        self._each_owner(self._broadcast_weights)

    def state(self) -> Iterator[tuple[str, Tensor]]:
        """Yield masters and optimizer state of all owners, by name."""
        for masters in self.masters:
            yield from masters.state()

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Load saved masters and optimizer state, and copy the weights to every replica."""
        for masters in self.masters:
            masters.load(tensors)
        self.copy_weights()

    def _each_owner(self, work: Callable[Concatenate[int, P], T], *args: P.args, **kwargs: P.kwargs) -> list[T]:
        futures = [drafter.submit(work, owner, *args, **kwargs) for owner, drafter in enumerate(self._drafters)]
        return [future.result() for future in futures]

    @torch.no_grad()
    def _sum_drafters(self, owner: int) -> None:
        if self.masters[owner].borrows:
            self._borrow_gradients(owner)
            return
        for name, total in self.masters[owner].sums.items():
            total.zero_()
            for drafter in self._drafters:
                gradient = drafter.gradient(name)
                if gradient is not None:
                    total.add_(gradient.to(total.device, non_blocking=True))

    def _borrow_gradients(self, owner: int) -> None:
        """Use the gradients of a single drafter in place: there is nothing to sum."""
        drafter, masters = self._drafters[owner], self.masters[owner]
        found = {name: drafter.gradient(name) for name in masters.weights}
        masters.borrow({n: torch.zeros_like(drafter.parameters[n]) if g is None else g for n, g in found.items()})

    def _norm_of_owner(self, owner: int) -> _Norm:
        norm = self.masters[owner].norm()
        return _Norm(norm, AsyncHostCopy(norm))

    def _step_after_norms(self, owner: int, lr: float, weight: float, norms: Sequence[Tensor]) -> None:
        """Launch the step after the norms of all owners on the device, before the host has read them."""
        here = [norm.to(norms[owner].device, non_blocking=True) for norm in norms]
        self._step_owner(owner, lr, device_scale(here, weight=weight, clip=self._clip))

    def _step_owner(self, owner: int, lr: float, scale: float | Tensor) -> None:
        self.masters[owner].update(lr=lr, scale=scale)
        self._broadcast_weights(owner)

    @torch.no_grad()
    def _broadcast_weights(self, owner: int) -> None:
        """Copy the owner's weights into every replica; its own replica may share the updated tensors."""
        for name, weight in self.masters[owner].weights.items():
            for drafter in self._drafters:
                replica = drafter.parameters[name]
                if replica.data_ptr() != weight.data_ptr():
                    replica.copy_(weight, non_blocking=True)


def _mean_norm(norms: Sequence[_Norm], weight: float) -> float:
    return math.hypot(*(float(norm.on_host.read()) for norm in norms)) / weight
