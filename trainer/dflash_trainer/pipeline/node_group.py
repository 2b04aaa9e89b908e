"""Several boxes that train one drafter: torchrun starts a process on each, and sums go over torch.distributed."""

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
    """This box among all. With one box every sum is what was given. close() leaves the group."""

    def __init__(self, rank: int = 0, count: int = 1) -> None:
        self.rank = rank
        self.count = count

    @classmethod
    def join(cls, *, cuda: bool) -> NodeGroup:
        """Join the group that torchrun's variables describe; one box without them."""
        if "WORLD_SIZE" not in os.environ:
            return cls()
        if int(os.environ.get("LOCAL_WORLD_SIZE", "1")) > 1 and cuda:
            value = os.environ["LOCAL_WORLD_SIZE"]
            raise ConfigError("--nproc-per-node", value, "one process drives all GPUs of a box", "use 1")
        try:
            dist.init_process_group("cpu:gloo,cuda:nccl" if cuda else "gloo", timeout=_TIMEOUT)
        except (RuntimeError, ValueError) as error:
            raise TrainerError(
                f"the boxes of this run did not meet: {str(error).splitlines()[0]}",
                "start the same torchrun command on every box, with one --rdzv-endpoint that all of them reach",
                name="boxes_apart",
            ) from error
        return cls(dist.get_rank(), dist.get_world_size())

    @property
    def is_rank_zero(self) -> bool:
        """True on the box that writes checkpoints and measures."""
        return self.rank == 0

    def sum_(self, tensors: Iterable[Tensor]) -> None:
        """Sum each tensor over the boxes, in place and in the same order everywhere."""
        if self.count > 1:
            for tensor in tensors:
                dist.all_reduce(tensor)

    def sum_numbers(self, numbers: Sequence[float]) -> list[float]:
        """Sum each number over the boxes."""
        if self.count == 1:
            return list(numbers)
        tensor = torch.tensor(numbers, dtype=torch.float64)
        dist.all_reduce(tensor)
        summed: list[float] = tensor.tolist()
        return summed

    def broadcast_(self, tensors: Iterable[Tensor]) -> None:
        """Overwrite each tensor with the leader's."""
        if self.count > 1:
            for tensor in tensors:
                dist.broadcast(tensor, src=0)

    def broadcast_text(self, text: str) -> str:
        """The leader's text on every box."""
        if self.count == 1:
            return text
        holder = [text]
        dist.broadcast_object_list(holder, src=0)
        return holder[0]

    def close(self) -> None:
        """Leave the group."""
        if self.count > 1 and dist.is_initialized():
            dist.destroy_process_group()
