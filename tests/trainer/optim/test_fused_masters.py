"""The fused optimizer against torch's AdamW, borrowed gradients, and steps launched before their norm is read."""

from __future__ import annotations

import math
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from dflash_trainer.compilation import WorkerCompiler
from dflash_trainer.config.schema import OptimizerConfig
from dflash_trainer.errors import ExitCode
from dflash_trainer.optim import fused_step
from dflash_trainer.optim.clipping import device_scale, host_scale
from dflash_trainer.optim.fused_masters import FusedMasters, create_masters
from dflash_trainer.optim.masters import Masters
from dflash_trainer.optim.split_fp32 import join, split
from dflash_trainer.pipeline import drafter_worker, exchange
from tiny_runs import TinyRun, step_results


def weights(seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {"w": torch.randn(16, 8, generator=generator).bfloat16(), "norm": torch.ones(8).bfloat16()}


@pytest.mark.parametrize("borrows", [True, False])
def test_fused_masters_equal_adamw_with_fp32_masters(borrows: bool) -> None:
    """Ten scaled steps with weight decay: masters equal those of torch's AdamW, replicas are their bf16 copies."""
    config = OptimizerConfig(weight_decay=0.1)
    replica = weights(0)
    fused = FusedMasters(replica, config, borrows=borrows, compiler=WorkerCompiler())
    plain = Masters(weights(0), config)
    generator = torch.Generator().manual_seed(1)
    for step in range(10):
        gradients = {name: torch.randn(w.shape, generator=generator).bfloat16() for name, w in replica.items()}
        if borrows:
            fused.borrow(gradients)
        for masters in (plain,) if borrows else (plain, fused):
            for summed, gradient in zip(masters.gradients(), gradients.values(), strict=True):
                summed.copy_(gradient)
        assert float(fused.norm()) == pytest.approx(float(plain.norm()), rel=1e-5)
        for masters in (plain, fused):
            masters.update(lr=1e-2 / (step + 1), scale=0.5)
    masters = dict(fused.state())
    for name, weight in replica.items():
        master = masters[f"{name}/master"]
        torch.testing.assert_close(master, plain.weights[name], rtol=1e-5, atol=1e-6)
        assert torch.equal(weight, master.bfloat16())
        assert not torch.equal(master, weight.float())


def test_state_survives_saving_and_loading() -> None:
    """State names equal those of Masters, and a loaded optimizer continues like the saved one."""
    config = OptimizerConfig()
    first, second = (FusedMasters(weights(0), config, borrows=True, compiler=WorkerCompiler()) for _ in range(2))
    gradient = {name: torch.ones_like(w) for name, w in weights(0).items()}
    first.borrow(gradient)
    first.update(lr=1e-2, scale=1.0)
    saved = {name: value.clone() for name, value in first.state()}
    assert saved.keys() == {name for name, _ in Masters(weights(0), config).state()}
    second.load(saved)
    for masters in (first, second):
        masters.borrow(gradient)
        masters.update(lr=1e-2, scale=1.0)
    for name, value in second.state():
        assert torch.equal(value, dict(first.state())[name])


def test_only_bf16_on_cuda_is_fused() -> None:
    assert type(create_masters(weights(0), OptimizerConfig(), borrows=True, compiler=WorkerCompiler())) is Masters


@pytest.mark.parametrize("clip", [1.0, 0.0])
@pytest.mark.parametrize("norm", [0.0, 0.3, 7.1, 3e30])
def test_device_scale_equals_host_scale(norm: float, clip: float) -> None:
    """With one part both are the same fp32 number; two parts are combined into one norm."""
    total = torch.tensor(norm)
    expected = torch.tensor(host_scale(float(total) / 3.7, weight=3.7, clip=clip))
    assert torch.equal(device_scale([total], weight=3.7, clip=clip), expected)
    parts = [torch.tensor(norm * 0.6), torch.tensor(norm * 0.8)]
    torch.testing.assert_close(device_scale(parts, weight=3.7, clip=clip), expected, rtol=1e-6, atol=0.0)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("clip", [1.0, 0.0])
def test_nonfinite_norm_changes_nothing(bad: float, clip: float) -> None:
    config = OptimizerConfig(weight_decay=0.1)
    replica = weights(0)
    masters = FusedMasters(replica, config, borrows=True, compiler=WorkerCompiler())
    good = {name: torch.ones_like(w) for name, w in replica.items()}
    masters.borrow(good)
    masters.update(lr=1e-2, scale=0.5)
    before = {name: value.clone() for name, value in masters.state()}
    replica_before = {name: value.clone() for name, value in replica.items()}
    masters.borrow({name: torch.full_like(w, bad) for name, w in replica.items()})
    masters.update(lr=1e-2, scale=device_scale([masters.norm()], weight=2.0, clip=clip))
    masters.revert_step_count()
    assert all(torch.equal(value, before[name]) for name, value in masters.state())
    assert all(torch.equal(value, replica_before[name]) for name, value in replica.items())


def test_split_and_join_restore_fp32_bit_for_bit() -> None:
    """Covers random bits, halfway cases and NaN; the upper half is the nearest bf16 number."""
    bits = torch.randint(-(2**31), 2**31, (200_000,), generator=torch.Generator().manual_seed(3)).to(torch.int32)
    halfway = torch.tensor([0x3F808000, 0x3F818000, -0x407F8000, 0x00008000, 0x007F8000, 0, 1 << 31], dtype=torch.int64)
    wide = torch.cat((bits, halfway.to(torch.int32))).view(torch.float32)
    wide = wide[wide.isfinite() & (wide.abs() < 3e38)]
    upper, lower = split(wide)
    assert torch.equal(join(upper, lower).view(torch.int32), wide.view(torch.int32))
    bad = torch.tensor([0x7FFFFFFF, 0x7FFF8000, 0x7F800001, -1, -0x8000], dtype=torch.int32)
    halves = split(bad.view(torch.float32))
    assert halves[0].view(torch.bfloat16).isnan().all()
    assert join(*halves).isnan().all()
    nearest = upper.view(torch.bfloat16)
    assert torch.equal((nearest.double() - wide).abs(), (wide.bfloat16().double() - wide).abs())


@pytest.mark.skipif(not shutil.which("g++"), reason="inductor needs a C++ compiler")
def test_compiled_kernel_changes_nothing_with_a_nan_scale() -> None:
    """The function that a GPU runs, compiled for the CPU."""
    compiled = WorkerCompiler().compiled(fused_step._update, any_size=True)
    generator = torch.Generator().manual_seed(2)
    for scale, size in ((0.5, 32), (math.nan, 48)):
        upper, lower = split(torch.rand(size, generator=generator))
        plain = [upper, lower, *(torch.rand(size, generator=generator) for _ in range(2)), torch.rand(size).bfloat16()]
        updated, start = ([tensor.clone() for tensor in plain] for _ in "ab")
        numbers = fused_step.StepNumbers(*(torch.full((), x) for x in (1e-2, scale, 0.1, 0.001)))
        for update, tensors in ((fused_step._update, plain), (compiled, updated)):
            update(*tensors, numbers, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.1)
        for found, expected in zip(updated[2:], plain[2:], strict=True):
            torch.testing.assert_close(found, expected)
        torch.testing.assert_close(join(*updated[:2]), join(*plain[:2]))
        unchanged = [torch.equal(found, first) for found, first in zip(updated[:4], start[:4], strict=True)]
        assert unchanged == [math.isnan(scale)] * 4


class _NormFirst(FusedMasters):
    """The same masters with a step that waits for the norm."""

    scales_on_device = False


def run_with(tiny: TinyRun, monkeypatch: pytest.MonkeyPatch, kind: type[FusedMasters], name: str, *more: str) -> Any:
    """Train on the CPU with the masters of a GPU."""

    def create(replica: Mapping[str, torch.Tensor], config: OptimizerConfig, **options: Any) -> Masters:
        return kind(replica, config, **options)

    monkeypatch.setattr(exchange, "create_masters", create)
    assert tiny.train(name, "drafter.dtype=bfloat16", "optimizer.max_steps=6", *more) == ExitCode.FINISHED
    return tiny.rows(name)


@pytest.mark.parametrize("devices", ['["cpu"]', '["cpu","cpu"]'])
@pytest.mark.parametrize(("accumulate", "clip"), [(1, 0.5), (2, 0.0)])
def test_step_launched_before_its_norm_is_read_trains_the_same(
    tiny: TinyRun, monkeypatch: pytest.MonkeyPatch, devices: str, accumulate: int, clip: float
) -> None:
    more = (f"drafter.devices={devices}", f"optimizer.accumulate={accumulate}", f"optimizer.clip={clip}")
    norm_first = run_with(tiny, monkeypatch, _NormFirst, "norm-first", *more)
    launched = run_with(tiny, monkeypatch, FusedMasters, "launched", *more)
    assert step_results(launched) == step_results(norm_first)
    assert all(row["grad_norm"] > 0.5 for row in launched)


@pytest.mark.parametrize("devices", ['["cpu"]', '["cpu","cpu"]'])
def test_nonfinite_norm_is_skipped_and_counted_after_the_launch(
    tiny: TinyRun, monkeypatch: pytest.MonkeyPatch, devices: str
) -> None:
    """A gradient is NaN in the second step: the step is skipped and counted, and the run continues without it."""
    real = drafter_worker.DrafterWorker.gradient

    def gradient(self: drafter_worker.DrafterWorker, name: str) -> torch.Tensor | None:
        value = real(self, name)
        if name != "norm.weight" or value is None:
            return value
        seen.append(name)
        return value * torch.nan if len(seen) == 1 + devices.count("cpu") else value

    found = []
    for kind in (_NormFirst, FusedMasters):
        seen: list[str] = []
        monkeypatch.setattr(drafter_worker.DrafterWorker, "gradient", gradient)
        found.append(run_with(tiny, monkeypatch, kind, kind.__name__, f"drafter.devices={devices}"))
    skipped = devices.count("cpu")
    assert [row["skipped_batches"] for row in found[1]] == [0, *[skipped] * 5]
    assert found[1][1]["grad_norm"] == "nan"
    assert step_results(found[1]) == step_results(found[0])
    steps = {name: Path(tiny.folder / name / "checkpoints/latest").resolve() for name in ("_NormFirst", "FusedMasters")}
    saved = [(folder / "optimizer.safetensors").read_bytes() for folder in steps.values()]
    assert saved[0] == saved[1]
