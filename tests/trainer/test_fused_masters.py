"""The one-pass optimizer against torch's AdamW, and gradients that are lent instead of copied."""

from __future__ import annotations

import pytest
import torch
from dflash_trainer.config import OptimizerConfig
from dflash_trainer.optim.fused_masters import FusedMasters, make_masters
from dflash_trainer.optim.masters import Masters


def weights(seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {"w": torch.randn(16, 8, generator=generator).bfloat16(), "norm": torch.ones(8).bfloat16()}


@pytest.mark.parametrize("borrows", [True, False])
def test_equals_adamw_with_masters(borrows: bool) -> None:
    """Ten clipped steps with decay: masters as torch's AdamW leaves them, replicas their bf16 copies."""
    config = OptimizerConfig(weight_decay=0.1)
    replica = weights(0)
    fused, plain = FusedMasters(replica, config, borrows=borrows), Masters(weights(0), config)
    generator = torch.Generator().manual_seed(1)
    for step in range(10):
        gradients = {name: torch.randn(w.shape, generator=generator).bfloat16() for name, w in replica.items()}
        if borrows:
            fused.borrow(gradients)
        for masters in (plain,) if borrows else (plain, fused):
            for mine, given in zip(masters.gradients(), gradients.values(), strict=True):
                mine.copy_(given)
        assert float(fused.norm()) == pytest.approx(float(plain.norm()), rel=1e-5)
        for masters in (plain, fused):
            masters.update(lr=1e-2 / (step + 1), scale=0.5)
    for name, master in fused.weights.items():
        torch.testing.assert_close(master, plain.weights[name], rtol=1e-5, atol=1e-6)
        assert torch.equal(replica[name], master.bfloat16())


def test_state_survives_saving_and_loading() -> None:
    """The same names as Masters', and a loaded optimizer goes on as the saved one."""
    config = OptimizerConfig()
    first, second = (FusedMasters(weights(0), config, borrows=True) for _ in range(2))
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
    assert type(make_masters(weights(0), OptimizerConfig(), borrows=True)) is Masters
