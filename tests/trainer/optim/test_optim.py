"""Schedules, optimizers with fp32 masters, and the partition of weights among owners."""

from __future__ import annotations

import math

import pytest
import torch
from dflash_trainer.config.schema import OptimizerConfig
from dflash_trainer.errors import InputError
from dflash_trainer.optim.masters import Masters
from dflash_trainer.optim.owners import partition_weights
from dflash_trainer.optim.schedule import learning_rate, total_steps


def rates(total: int, **values: object) -> list[float]:
    """Return the learning rate of every step as a fraction of the peak."""
    config = OptimizerConfig(lr=2.0, **values)  # type: ignore[arg-type]
    return [learning_rate(step, total, config) / 2.0 for step in range(1, total + 1)]


def test_cosine_warms_up_and_decays_to_zero() -> None:
    found = rates(100, warmup_ratio=0.04)
    assert found[:4] == [0.25, 0.5, 0.75, 1.0]
    assert all(a > b for a, b in zip(found[3:], found[4:], strict=False))
    assert found[51] == pytest.approx(0.5, abs=0.01) and found[-1] == pytest.approx(0.0)


def test_wsd_is_constant_between_warm_up_and_decay() -> None:
    found = rates(100, schedule="wsd", warmup_ratio=0.1, decay_ratio=0.2)
    assert found[9:80] == [1.0] * 71
    assert found[89] == pytest.approx(0.5) and found[-1] == 0.0


def test_max_steps_caps_the_steps_of_the_epochs() -> None:
    assert total_steps(10, 4, OptimizerConfig(epochs=3)) == 7
    assert total_steps(10, 4, OptimizerConfig(epochs=3, max_steps=5)) == 5
    assert total_steps(1, 8, OptimizerConfig(epochs=1)) == 1


def test_masters_equal_torch_adamw_and_keep_fp32_updates_of_a_bf16_replica() -> None:
    torch.manual_seed(0)
    start, gradients = torch.randn(6, 4), [torch.randn(6, 4) for _ in range(5)]
    plain = torch.nn.Parameter(start.clone())
    reference = torch.optim.AdamW([plain], lr=1e-4, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.1)
    masters = Masters({"w": start.clone()}, OptimizerConfig(weight_decay=0.1))
    for gradient in gradients:
        plain.grad = gradient.clone()
        reference.step()
        masters.gradients()[0].copy_(gradient * 8)
        masters.update(lr=1e-4, scale=1 / 8)
    torch.testing.assert_close(masters.weights["w"], plain.detach(), rtol=1e-6, atol=1e-7)
    low = Masters({"w": start.bfloat16()}, OptimizerConfig())
    low.gradients()[0].copy_(gradients[0])
    low.update(lr=1e-4, scale=1.0)
    moved = low.weights["w"] - start.bfloat16().float()
    assert low.weights["w"].dtype == torch.float32
    assert moved.abs().max() == pytest.approx(1e-4, rel=0.01)


def test_bf16_moments_stay_close_to_fp32_moments() -> None:
    torch.manual_seed(0)
    start = torch.randn(32, 8)
    both = [Masters({"w": start.clone()}, OptimizerConfig(state_dtype=kind)) for kind in ("float32", "bfloat16")]  # type: ignore[arg-type]
    for _ in range(20):
        gradient = torch.randn(32, 8)
        for masters in both:
            masters.gradients()[0].copy_(gradient)
            masters.update(lr=1e-3, scale=1.0)
    exact, small = (masters.weights["w"] - start for masters in both)
    assert dict(both[1].state())["w/exp_avg"].dtype == torch.bfloat16
    assert (small - exact).norm() / exact.norm() < 0.02


def test_muon_updates_matrices_orthogonally_and_norms_with_adamw() -> None:
    torch.manual_seed(0)
    masters = Masters({"w": torch.zeros(8, 8), "norm": torch.ones(8)}, OptimizerConfig(kind="muon"))
    for gradient in masters.gradients():
        gradient.normal_()
    masters.update(lr=0.1, scale=1.0)
    singular = torch.linalg.svdvals(masters.weights["w"])
    assert singular.max() / singular.min() < 2.5
    assert (masters.weights["norm"] - 1).abs().allclose(torch.tensor(0.1), rtol=1e-3)
    assert {name for name, _ in masters.state()} == {
        "w/master", "w/momentum_buffer", "norm/master", "norm/exp_avg", "norm/exp_avg_sq", "norm/step",
    }  # fmt: skip


def test_creating_the_state_does_not_change_the_weights() -> None:
    masters = Masters({"w": torch.full((2, 2), 3.0)}, OptimizerConfig(weight_decay=0.5))
    state = dict(masters.state())
    assert torch.equal(state["w/master"], torch.full((2, 2), 3.0))
    assert all(not value.any() for name, value in state.items() if name != "w/master")


def test_missing_or_misshapen_state_is_reported_by_name() -> None:
    masters = Masters({"w": torch.zeros(2, 2)}, OptimizerConfig())
    with pytest.raises(InputError, match=r"w/master is missing"):
        masters.load({})
    with pytest.raises(InputError, match=r"w/exp_avg has shape \(3,\), not \(2, 2\)"):
        masters.load({name: torch.zeros(3) if "exp_avg" in name else value for name, value in masters.state()})


@pytest.mark.parametrize("owners", [1, 2, 3, 5])
def test_each_weight_has_one_owner_and_loads_are_even(owners: int) -> None:
    sizes = {f"w{i}": 100 + 37 * (i % 5) for i in range(40)}
    parts = partition_weights(sizes, owners)
    assert sorted(name for part in parts for name in part) == sorted(sizes)
    loads = [sum(sizes[name] for name in part) for part in parts]
    assert max(loads) - min(loads) <= max(sizes.values())
    assert math.isclose(sum(loads), sum(sizes.values()))
