"""Benchmark of the drafter's step on random hidden states: forward, backward, optimizer with fp32 masters."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from dflash_trainer import compilation
from dflash_trainer.bench.measure import (
    allocated_gb,
    machine,
    peak_during,
    peak_gb,
    reset_peak,
    time_after_idle,
    time_back_to_back,
    time_call,
    wait,
)
from dflash_trainer.config.target_shape import TargetShape, locate, read_shape
from dflash_trainer.loss import draft_loss
from dflash_trainer.loss.loss import prepare_head
from dflash_trainer.model import Drafter
from dflash_trainer.model.anchors import draw_anchors
from dflash_trainer.model.shape import drafter_shape
from dflash_trainer.optim.clipping import device_scale, host_scale
from dflash_trainer.optim.fused_masters import create_masters
from dflash_trainer.pipeline.async_host_copy import AsyncHostCopy

if TYPE_CHECKING:
    from dflash_trainer.config.schema import Config


class DrafterBench:
    """A drafter, its optimizer state and one random batch on one device."""

    def __init__(self, config: Config, length: int, device: torch.device) -> None:
        self.config = config
        self.device = device
        self.length = length
        target = read_shape(locate(config.target.path))
        self.dtype = getattr(torch, config.drafter.dtype)
        self.drafter = _drafter_on(config, target, device, self.dtype)
        self.generator = torch.Generator(device).manual_seed(config.runtime.seed)
        self.embed, self.head_weight = (self._random(target.vocab_size, target.hidden_size, std=0.02) for _ in range(2))
        self.head = prepare_head(self.head_weight, config.objective, self.drafter.compiler)
        if config.objective.head_precision == "fp8":
            self.head_weight = torch.empty(0, device=device)
        rows = config.data.batch_size(length)
        width = len(self.drafter.shape.target_layer_ids) * target.hidden_size
        self.states = self._random(rows, length, width)
        self.input_ids = torch.randint(target.vocab_size, (rows, length), device=device, generator=self.generator)
        self.loss_mask = torch.ones(rows, length, dtype=torch.bool, device=device)
        self.masters = create_masters(
            dict(self.drafter.named_parameters()), config.optimizer, borrows=True, compiler=self.drafter.compiler
        )

    def forward(self) -> Tensor:
        """Return the loss of the batch with newly drawn anchors."""
        anchors, valid = draw_anchors(self.loss_mask, self.config.objective.num_anchors, self.generator)
        output = draft_loss(
            self.drafter,
            self.embed,
            self.head,
            self.states,
            self.input_ids,
            self.loss_mask,
            anchors,
            valid,
            self.config.objective,
            generator=self.generator,
        )
        return output.loss

    def forward_backward(self) -> None:
        """Compute the gradients of the batch."""
        self.clear_gradients()
        self.backward(self.forward())

    def clear_gradients(self) -> None:
        """Drop the gradients."""
        for parameter in self.drafter.parameters():
            parameter.grad = None

    def backward(self, loss: Tensor) -> None:
        """Run the backward pass of `loss`."""
        loss.backward()  # type: ignore[no-untyped-call]

    def optimize(self) -> None:
        """Clip and update like the pipeline; on CUDA the host reads the norm after it launched the update."""
        self._pass_gradients()
        lr, clip = self.config.optimizer.lr, self.config.optimizer.clip
        norm = self.masters.norm()
        norm_copy = AsyncHostCopy(norm)
        if self.masters.scales_on_device:
            self.masters.update(lr=lr, scale=device_scale([norm], weight=1.0, clip=clip))
            norm_copy.read()
        else:
            self.masters.update(lr=lr, scale=host_scale(float(norm_copy.read()), weight=1.0, clip=clip))

    def step(self) -> None:
        """Run one training step."""
        self.forward_backward()
        self.optimize()

    def _random(self, *size: int, std: float = 1.0) -> Tensor:
        values = torch.empty(size, device=self.device, dtype=self.dtype)
        return values.normal_(0.0, std, generator=self.generator)

    def _pass_gradients(self) -> None:
        gradients = {name: p.grad for name, p in self.drafter.named_parameters() if p.grad is not None}
        if self.masters.borrows:
            self.masters.borrow(gradients)
            return
        for master, gradient in zip(self.masters.gradients(), gradients.values(), strict=True):
            master.copy_(gradient)


def bench_drafter(config: Config, repeats: int) -> dict[str, Any]:
    """Measure step time, its parts and memory for each bucket, with random weights and new anchors in every step."""
    device = torch.device(config.drafter.devices[0])
    compilation.configure_thread(len(config.data.buckets))
    results = [_bench_length(config, length, device, repeats) for length in config.data.buckets]
    return {"stage": "drafter", **machine(device), "results": results}


def _bench_length(config: Config, length: int, device: torch.device, repeats: int) -> dict[str, Any]:
    bench = DrafterBench(config, length, device)
    started = time.perf_counter()
    bench.step()
    wait(device)
    first = time.perf_counter() - started
    bench.step()
    compiled = compilation.compiled_graphs()
    reset_peak(device)
    step = time_call(bench.step, device, repeats=repeats)
    peak = peak_gb(device)
    back_to_back = time_back_to_back(bench.step, device, repeats=repeats)
    forward_backward = time_call(bench.forward_backward, device, repeats=repeats)
    optimizer = time_call(bench.optimize, device, repeats=repeats)
    after_idle = time_after_idle(bench.step, device, repeats=min(repeats, 5))
    tokens = bench.input_ids.numel()
    return {
        "rows": bench.input_ids.shape[0],
        "length": length,
        "anchors": config.objective.num_anchors,
        "block": config.drafter.block_size,
        "head_precision": config.objective.head_precision,
        "state_dtype": config.optimizer.state_dtype,
        "step_ms": step.total_ms,
        "step_ms_range": [step.fastest_ms, step.slowest_ms],
        "unbroken_step_ms": back_to_back,
        "rested_step_ms": after_idle,
        "host_ms": step.host_ms,
        "forward_backward_ms": forward_backward.total_ms,
        "optimizer_ms": optimizer.total_ms,
        "tokens_per_second": round(tokens / step.total_ms * 1e3, 1),
        "peak_gb": peak,
        "memory_gb": _memory(bench, device),
        "first_step_s": round(first, 2),
        "recompiles": compilation.compiled_graphs() - compiled,
    }


def _memory(bench: DrafterBench, device: torch.device) -> dict[str, float]:
    """Return the memory held between steps, the activations, and the peak of each part, in GB."""
    bench.clear_gradients()
    held = allocated_gb(device)
    loss, forward = peak_during(bench.forward, device)
    kept = allocated_gb(device) - held
    _, backward = peak_during(partial(bench.backward, loss), device)
    _, optimizer = peak_during(bench.optimize, device)
    return {
        "held": held,
        "activations": round(kept, 2),
        "forward_peak": forward,
        "backward_peak": backward,
        "optimizer_peak": optimizer,
    }


def _drafter_on(config: Config, target: TargetShape, device: torch.device, dtype: torch.dtype) -> Drafter:
    """Return a drafter with random weights created on the device: a large one takes long on the CPU."""
    with torch.device(device):
        drafter = Drafter(
            drafter_shape(config.drafter, target),
            compiled=config.runtime.compile,
            checkpointed=config.runtime.gradient_checkpointing,
        ).to(dtype)
    for parameter in drafter.parameters():
        if parameter.ndim == 2:
            parameter.data.normal_(0.0, 0.02)
    return drafter
