"""The objective against a plain computation with all logits in double precision."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from dflash_trainer.config.schema import Config, DrafterConfig, ObjectiveConfig, RuntimeConfig, TargetConfig
from dflash_trainer.config.target_shape import RANDOM_SHAPES
from dflash_trainer.loss import draft_loss
from dflash_trainer.loss.accept import accept_length, accuracy_per_slot
from dflash_trainer.loss.head import PlainHead, head_loss, rows_per_chunk
from dflash_trainer.loss.loss import block_inputs, block_labels, weight_rule
from dflash_trainer.loss.weights import decay_weights, dpace_weights
from dflash_trainer.model import build_drafter
from dflash_trainer.model.anchors import draw_anchors
from dflash_trainer.model.layer import expand_to_slots
from torch.nn import functional

SLOTS, BLOCKS = 7, 9


def plain_dpace(q: list[float], supervised: list[bool], alpha: float) -> list[float]:
    """Return w_j = sum over m >= j of prod over i <= m, computed one index at a time."""
    reach, factors = [], 1.0
    for probability, counted in zip(q, supervised, strict=True):
        factors *= ((1 - alpha) * probability + alpha) if counted else 1.0
        reach.append(factors if counted else 0.0)
    return [sum(reach[j:]) if supervised[j] else 0.0 for j in range(len(q))]


def test_dpace_weights_equal_their_definition() -> None:
    q = torch.tensor([[0.9, 0.1, 0.5, 0.7]], dtype=torch.float64)
    for supervised in ([True] * 4, [True, False, True, True], [False] * 4):
        found = dpace_weights(q, torch.tensor([supervised]), 0.5)
        assert found[0].tolist() == pytest.approx(plain_dpace(q[0].tolist(), supervised, 0.5))


def test_decay_weights_fall_exponentially_and_skip_unsupervised_slots() -> None:
    found = decay_weights(torch.tensor([True, True, False, True]), 4.0)
    assert found.tolist() == pytest.approx([1.0, 0.7788008, 0.0, 0.4723666])


@pytest.mark.parametrize("kind", ["decay", "dpace"])
@pytest.mark.parametrize("chunk", [1, 20, 10_000])
def test_head_loss_and_gradient_equal_those_of_autograd(kind: str, chunk: int) -> None:
    """The gradient computed in the forward pass equals autograd's with all logits, for any chunk size."""
    generator = torch.Generator().manual_seed(1)
    hidden = torch.randn(BLOCKS * SLOTS, 16, dtype=torch.float64, generator=generator, requires_grad=True)
    head = torch.randn(50, 16, dtype=torch.float64, generator=generator)
    labels = torch.randint(50, (BLOCKS * SLOTS,), generator=generator)
    supervised = torch.rand(BLOCKS * SLOTS, generator=generator) > 0.2
    rule = weight_rule(ObjectiveConfig(kind=kind, gamma=3.0), SLOTS + 1)  # type: ignore[arg-type]
    found = head_loss(hidden, labels, supervised, PlainHead(head), rule, slots=SLOTS, chunk=chunk)
    (gradient,) = torch.autograd.grad(found.total * 3, hidden)

    logits = hidden @ head.T
    loss = functional.cross_entropy(logits, labels, reduction="none").view(BLOCKS, SLOTS)
    weights = rule(-loss.detach(), supervised.view(BLOCKS, SLOTS))
    plain = (loss * weights).sum()
    (expected,) = torch.autograd.grad(plain * 3, hidden)
    assert float(found.total.detach()) == pytest.approx(float(plain.detach()), rel=1e-6)
    torch.testing.assert_close(gradient, expected, rtol=1e-6, atol=1e-9)
    right = (logits.argmax(-1) == labels) & supervised
    assert torch.equal(found.correct.flatten(), right)


def test_logits_are_computed_in_chunks() -> None:
    rows: list[int] = []

    class CountingHead(PlainHead):
        def logits(self, hidden_MD: torch.Tensor) -> torch.Tensor:
            rows.append(hidden_MD.shape[0])
            return super().logits(hidden_MD)

    hidden = torch.randn(BLOCKS * SLOTS, 8, requires_grad=True)
    labels = torch.zeros(BLOCKS * SLOTS, dtype=torch.int64)
    rule = partial(lambda log_q, supervised: supervised.float())
    head = CountingHead(torch.randn(11, 8))
    head_loss(hidden, labels, labels == 0, head, rule, slots=SLOTS, chunk=3 * SLOTS + 2).total.backward()
    assert rows == [3 * SLOTS] * 3


def test_chunks_are_whole_blocks_of_equal_size() -> None:
    assert rows_per_chunk(512 * 15, slots=15, chunk=4096) == 256 * 15
    assert rows_per_chunk(10 * 7, slots=7, chunk=3) == 7
    assert rows_per_chunk(7, slots=7, chunk=4096) == 7


def test_slot_k_predicts_the_token_at_anchor_plus_k() -> None:
    ids = torch.arange(100, 110)[None]
    mask = torch.tensor([[0, 0, 1, 1, 1, 0, 1, 1, 1, 1]])
    anchors, valid = torch.tensor([[2, 7, 0]]), torch.tensor([[True, True, False]])
    inputs = block_inputs(ids, anchors, valid, mask_token=1)
    assert inputs[0].tolist() == [102, 107, 1, 1]
    assert expand_to_slots(inputs, 4)[0].tolist() == [102, 1, 1, 1, 107, 1, 1, 1, 1, 1, 1, 1]
    labels, supervised = block_labels(ids, mask, anchors, valid, block=4)
    assert labels[0, 0].tolist() == [103, 104, 105]
    assert supervised[0].tolist() == [[True, True, False], [True, True, False], [False, False, False]]
    assert labels[0, 1, :2].tolist() == [108, 109]


def test_accept_length_includes_the_token_of_the_target() -> None:
    correct = torch.tensor([[True, True, False], [False, True, True], [True, True, True], [True, True, True]])
    valid = torch.tensor([True, True, True, False])
    assert float(accept_length(correct, valid)) == pytest.approx((3 + 1 + 4) / 3)
    assert float(accept_length(correct, torch.zeros(4, dtype=torch.bool))) == 0
    accuracy = accuracy_per_slot(correct, torch.tensor([[True, False, True]] * 3 + [[False] * 3]))
    assert accuracy[0] == pytest.approx(2 / 3)
    assert accuracy[1].isnan()
    assert accuracy[2] == pytest.approx(2 / 3)


def tiny_batch(**objective: object) -> dict[str, object]:
    config = Config(
        target=TargetConfig(path="random:tiny"),
        drafter=DrafterConfig(mask_token_id=5, num_layers=2, block_size=8, num_captured=2),
        objective=ObjectiveConfig(num_anchors=6, **objective),  # type: ignore[arg-type]
        runtime=RuntimeConfig(compile=False),
    )
    generator = torch.Generator().manual_seed(2)
    shape = RANDOM_SHAPES["tiny"]
    mask = torch.zeros(2, 40, dtype=torch.int64)
    mask[0, 10:30] = 1
    anchors, valid = draw_anchors(mask, 6, generator)
    return {
        "drafter": build_drafter(config, shape),
        "embed_weight": torch.randn(256, 64, generator=generator),
        "head_weight": torch.randn(256, 64, generator=generator),
        "states_BLX": torch.randn(2, 40, 128, generator=generator),
        "input_ids_BL": torch.randint(256, (2, 40), generator=generator),
        "loss_mask_BL": mask,
        "anchors_BN": anchors,
        "valid_BN": valid,
        "objective": config.objective,
    }


def test_padding_blocks_do_not_change_loss_or_gradients() -> None:
    """A row without supervised tokens and padding blocks contribute nothing, and no gradient is NaN."""
    batch = tiny_batch()
    both = draft_loss(**batch)  # type: ignore[arg-type]
    both.loss.backward()
    drafter = batch["drafter"]
    gradients = {name: p.grad.clone() for name, p in drafter.named_parameters()}  # type: ignore[attr-defined]
    drafter.zero_grad()  # type: ignore[attr-defined]
    for name in ("states_BLX", "input_ids_BL", "loss_mask_BL", "anchors_BN", "valid_BN"):
        batch[name] = batch[name][:1]  # type: ignore[index]
    first = draft_loss(**batch)  # type: ignore[arg-type]
    first.loss.backward()
    torch.testing.assert_close(first.loss, both.loss)
    assert float(first.weight) == pytest.approx(float(both.weight))
    for name, parameter in drafter.named_parameters():  # type: ignore[attr-defined]
        torch.testing.assert_close(parameter.grad, gradients[name], rtol=1e-4, atol=1e-7)
        assert parameter.grad.isfinite().all()


def test_batch_without_supervised_tokens_has_loss_zero() -> None:
    batch = tiny_batch()
    batch["valid_BN"] = torch.zeros_like(batch["valid_BN"])  # type: ignore[call-overload]
    output = draft_loss(**batch)  # type: ignore[arg-type]
    output.loss.backward()
    assert float(output.loss) == 0 == float(output.weight)
    assert all(p.grad.abs().sum() == 0 for p in batch["drafter"].parameters())  # type: ignore[attr-defined]


def test_noise_comes_from_the_generator() -> None:
    batch = tiny_batch(noise_std=0.05)
    losses = [float(draft_loss(**batch, generator=torch.Generator().manual_seed(s)).loss) for s in (1, 1, 2)]  # type: ignore[arg-type]
    assert losses[0] == losses[1] != losses[2]
    with pytest.raises(ValueError, match="needs a generator"):
        draft_loss(**batch)  # type: ignore[arg-type]
