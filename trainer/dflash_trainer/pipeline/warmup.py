"""Warm-up: compile, autotune and capture every (device, shape) in the main thread before workers start.

Compiling in one thread while another runs compiled code causes races, and a new shape in the middle of a run costs
seconds and memory. Therefore the main thread runs the forward and backward pass of every worker once per bucket.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from dflash_trainer import compilation
from dflash_trainer.loss import draft_loss
from dflash_trainer.loss.head import HeadProducts
from dflash_trainer.loss.loss import prepare_head
from dflash_trainer.model import Drafter, build_drafter
from dflash_trainer.model.anchors import draw_anchors
from dflash_trainer.optim.fused_masters import create_masters
from dflash_trainer.optim.owners import partition_weights
from dflash_trainer.target import Target, load_target

if TYPE_CHECKING:
    from dflash_trainer.config.schema import Config

Log = Callable[[str], None]


class DrafterSite(NamedTuple):
    """A drafter on its device, with the target's embedding and head."""

    drafter: Drafter
    device: torch.device
    embed: Tensor
    head: Tensor | HeadProducts


@dataclass(frozen=True)
class ShapeTime:
    """Duration of one step of the warm-up, in seconds."""

    device: str
    worker: str
    bucket: int
    seconds: float


class _Step(NamedTuple):
    worker: str
    device: torch.device
    bucket: int
    what: str
    run: Callable[[], None]


def warm(
    config: Config, targets: Sequence[Target], drafters: Sequence[DrafterSite], *, log: Log = print
) -> list[ShapeTime]:
    """Run every worker once on every bucket, in this thread.

    Afterwards no call of the run compiles, so `compilation.forbid_recompiles()` may be set. Gradients are cleared.

    Raises:
        CompileError: a function does not compile.
    """
    compilation.install_guards()
    compilation.configure_thread(len(config.data.buckets))
    steps = [*_target_steps(config, targets), *_drafter_steps(config, drafters)]
    times, action = [], "compiling" if compiles(config) else "running"
    for number, step in enumerate(steps, start=1):
        where = f"{number}/{len(steps)} {step.worker} {step.device} L={step.bucket} {step.what}"
        log(f"{action} {where}")
        started = time.perf_counter()
        with compilation.named_compile_failures():
            step.run()
        _finish(step.device)
        seconds = time.perf_counter() - started
        times.append(ShapeTime(str(step.device), step.worker, step.bucket, round(seconds, 3)))
        log(f"warmup {where} {seconds:.1f} s")
    return times


def compiles(config: Config) -> bool:
    """Return True when this configuration compiles or autotunes; on GPUs always."""
    return config.runtime.compile or any(device != "cpu" for device in config.devices)


def run_warmup(config: Config, report: Path, *, log: Log = print) -> dict[str, Any]:
    """Load every worker's model, warm up all shapes and write the report; the `warmup` command.

    The environment variables of the cache folders must be set before torch is imported.
    """
    started = time.perf_counter()
    before = compilation.cache_counters()
    targets = [load_target(config, device) for device in config.target.devices]
    drafters = [place_drafter(config, targets[0], device) for device in config.drafter.devices]
    loaded = time.perf_counter()
    shapes = warm(config, targets, drafters, log=log)
    warm_optimizer(config, drafters, log=log)
    counters = {name: value - before[name] for name, value in compilation.cache_counters().items()}
    result = {
        "ok": True,
        "seconds": round(time.perf_counter() - loaded, 3),
        "load_seconds": round(loaded - started, 3),
        "shapes": [asdict(shape) for shape in shapes],
        "counters": counters,
        "misses": counters["fxgraph_cache_miss"] + counters["autograd_cache_miss"],
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "gpus": [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())],
    }
    _write_atomically(report, result)
    return result


def warm_optimizer(config: Config, drafters: Sequence[DrafterSite], *, log: Log = print) -> None:
    """Compile the optimizer update of every owner; a run does this when it creates its masters."""
    parts = partition_weights({name: p.numel() for name, p in drafters[0].drafter.named_parameters()}, len(drafters))
    for number, (site, names) in enumerate(zip(drafters, parts, strict=True)):
        if site.device.type == "cuda":
            log(f"compiling optimizer[{number}] {site.device}")
            _enter(site.device)
            weights = dict(site.drafter.named_parameters())
            with compilation.named_compile_failures():
                create_masters(
                    {name: weights[name] for name in names},
                    config.optimizer,
                    borrows=len(drafters) == 1,
                    compiler=site.drafter.compiler,
                )
            _finish(site.device)


def place_drafter(config: Config, target: Target, device: str) -> DrafterSite:
    """Return a new drafter and the target's embedding and head on `device`, in the drafter's dtype."""
    place, dtype = torch.device(device), getattr(torch, config.drafter.dtype)
    if place.type == "cuda":
        torch.cuda.set_device(place)
    drafter = build_drafter(config, target.shape).to(device=place, dtype=dtype)
    embed = target.embed_weight.to(device=place, dtype=dtype)
    head = embed if target.head_weight is target.embed_weight else target.head_weight.to(device=place, dtype=dtype)
    return DrafterSite(drafter, place, embed, prepare_head(head, config.objective, drafter.compiler))


def _target_steps(config: Config, targets: Sequence[Target]) -> Iterator[_Step]:
    for number, target in enumerate(targets):
        for bucket in config.data.buckets:

            def run(target: Target = target, bucket: int = bucket) -> None:
                _enter(target.device)
                target.warm_up(config.data.batch_size(bucket), bucket)

            yield _Step(f"target[{number}]", target.device, bucket, "forward", run)


def _drafter_steps(config: Config, drafters: Sequence[DrafterSite]) -> Iterator[_Step]:
    for number, site in enumerate(drafters):
        for bucket in config.data.buckets:

            def run(site: DrafterSite = site, bucket: int = bucket) -> None:
                _enter(site.device)
                _forward_and_backward(config, site, config.data.batch_size(bucket), bucket)

            yield _Step(f"drafter[{number}]", site.device, bucket, "forward+backward", run)


def _forward_and_backward(config: Config, site: DrafterSite, rows: int, length: int) -> None:
    """Run one batch with the dtypes and shapes of the drafter worker and arbitrary values."""
    shape = site.drafter.shape
    generator = torch.Generator(site.device).manual_seed(0)
    width = len(shape.target_layer_ids) * shape.hidden_size
    dtype = getattr(torch, config.target.dtype)
    states = torch.randn(rows, length, width, device=site.device, dtype=dtype, generator=generator)
    input_ids = torch.zeros(rows, length, dtype=torch.int64, device=site.device)
    loss_mask = torch.ones(rows, length, dtype=torch.bool, device=site.device)
    anchors, valid = draw_anchors(loss_mask, config.objective.num_anchors, generator)
    output = draft_loss(
        site.drafter,
        site.embed,
        site.head,
        states,
        input_ids,
        loss_mask,
        anchors,
        valid,
        config.objective,
        generator=generator,
    )
    output.loss.backward()  # type: ignore[no-untyped-call]
    site.drafter.zero_grad(set_to_none=True)


def _enter(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.set_device(device)


def _finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _write_atomically(file: Path, value: dict[str, Any]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    staging = file.with_name(f".{file.name}.{os.getpid()}")
    staging.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
    staging.replace(file)
