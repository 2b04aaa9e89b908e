"""Process group of the nodes that train one drafter: torchrun starts one process per node."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

from dflash_trainer.errors import ConfigError, TrainerError

_TIMEOUT = timedelta(minutes=30)


class NodeGroup:
    """This node's place in the process group; with one node every collective is the identity. close() leaves it."""

    def __init__(self, rank: int = 0, world_size: int = 1) -> None:
        self.rank = rank
        self.world_size = world_size

    @classmethod
    def join(cls, *, cuda: bool) -> NodeGroup:
        """Join the group that torchrun's environment variables describe; a group of one without them.

        Raises:
            ConfigError: more than one process per node on CUDA.
            TrainerError: the nodes could not connect to each other.
        """
        if "WORLD_SIZE" not in os.environ:
            return cls()
        if int(os.environ.get("LOCAL_WORLD_SIZE", "1")) > 1 and cuda:
            value = os.environ["LOCAL_WORLD_SIZE"]
            raise ConfigError("--nproc-per-node", value, "one process drives all GPUs of a node", "use 1")
        try:
            dist.init_process_group("cpu:gloo,cuda:nccl" if cuda else "gloo", timeout=_TIMEOUT)
        except (RuntimeError, ValueError) as error:
            raise TrainerError(
                f"the nodes of this run could not connect: {str(error).splitlines()[0]}",
                "start the same torchrun command on every node, with one --rdzv-endpoint that all nodes reach",
                name="nodes_not_connected",
            ) from error
        return cls(dist.get_rank(), dist.get_world_size())

    @property
    def is_rank_zero(self) -> bool:
        """True on the node that writes checkpoints and reports to trackers."""
        return self.rank == 0

    def all_reduce_(self, tensors: Iterable[Tensor]) -> None:
        """Sum each tensor over the nodes, in place; every node passes them in the same order."""
        if self.world_size > 1:
            for tensor in tensors:
                dist.all_reduce(tensor)

    def all_reduce_numbers(self, numbers: Sequence[float]) -> list[float]:
        """Return each number summed over the nodes."""
        if self.world_size == 1:
            return list(numbers)
        tensor = torch.tensor(numbers, dtype=torch.float64)
        dist.all_reduce(tensor)
        summed: list[float] = tensor.tolist()
        return summed

    def broadcast_(self, tensors: Iterable[Tensor]) -> None:
        """Overwrite each tensor with that of rank 0."""
        if self.world_size > 1:
            for tensor in tensors:
                dist.broadcast(tensor, src=0)

    def broadcast_text(self, text: str) -> str:
        """Return the text of rank 0 on every node."""
        if self.world_size == 1:
            return text
        holder = [text]
        dist.broadcast_object_list(holder, src=0)
        return holder[0]

    def close(self) -> None:
        """Leave the group."""
        if self.world_size > 1 and dist.is_initialized():
            dist.destroy_process_group()
