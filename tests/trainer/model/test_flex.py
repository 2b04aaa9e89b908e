"""Flex attention on tiles against dense attention: forward on the CPU, forward and backward on a GPU."""

from __future__ import annotations

import shutil

import pytest
import torch
from dflash_trainer.compilation import WorkerCompiler
from dflash_trainer.loss import vocabulary
from dflash_trainer.model.anchors import draw_anchors
from dflash_trainer.model.attention import BlockLayout, Visibility, attend, flex_over_tiles, visibility
from dflash_trainer.model.mask_tiles import mask_tiles
from dflash_trainer.model.masks import dense_mask

CASES = [BlockLayout(256, 16, 0), BlockLayout(256, 16, 100), BlockLayout(200, 10, 64)]


def both_masks(layout: BlockLayout, device: str) -> tuple[Visibility, Visibility]:
    """Return a mask as tiles and as a dense tensor; the second row has few candidates, hence padding blocks."""
    loss_mask = torch.ones(2, layout.context, device=device)
    loss_mask[1, 60:] = 0
    loss_mask[1, :50] = 0
    anchors, valid = draw_anchors(loss_mask, 20, torch.Generator(device).manual_seed(layout.block))
    assert not valid.all()
    tiles = Visibility(layout, anchors, valid, None, mask_tiles(anchors, valid, **layout._asdict()))
    return tiles, Visibility(layout, anchors, valid, dense_mask(anchors, valid, **layout._asdict()), None)


def tensors(layout: BlockLayout, device: str) -> list[torch.Tensor]:
    generator = torch.Generator(device).manual_seed(0)
    queries = 20 * layout.block
    sizes = ((queries, 4), (layout.context + queries, 2), (layout.context + queries, 2))
    return [torch.randn(2, *size, 32, device=device, generator=generator).requires_grad_() for size in sizes]


@pytest.mark.skipif(not shutil.which("g++"), reason="inductor needs a C++ compiler")
@pytest.mark.parametrize("layout", CASES[1:])
def test_tiles_equal_the_dense_mask_on_the_cpu(layout: BlockLayout) -> None:
    tiles, dense = both_masks(layout, "cpu")
    q, k, v = (x.detach() for x in tensors(layout, "cpu"))
    flex = WorkerCompiler().compiled(flex_over_tiles)
    with torch.no_grad():
        found, expected = attend(q, k, v, tiles, flex), attend(q, k, v, dense, flex)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
@pytest.mark.parametrize("layout", CASES)
def test_tiles_equal_the_dense_mask_on_a_gpu(layout: BlockLayout) -> None:
    _, dense = both_masks(layout, "cuda")
    inputs = tensors(layout, "cuda")
    flex = WorkerCompiler().compiled(flex_over_tiles)
    found = attend(*inputs, visibility(dense.anchors_BN, dense.valid_BN, layout), flex)
    expected = attend(*(x.double() for x in inputs), dense, flex).float()
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    direction = torch.randn_like(found)
    for mine, plain in zip(
        torch.autograd.grad(found, inputs, direction), torch.autograd.grad(expected, inputs, direction), strict=True
    ):
        assert float((mine - plain).norm() / plain.norm()) < 1e-4


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_vocabulary_kernels_equal_the_plain_code_on_a_gpu(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    logits = (torch.randn(7, 10_003, generator=generator) * 3).to(dtype)
    logits[2, 5] = logits[2, 9_000] = 30.0
    labels, weight = torch.randint(10_003, (7,), generator=generator), torch.rand(7, generator=generator)
    plain = vocabulary.row_terms(logits, labels)
    kernel = vocabulary.row_terms(logits.cuda(), labels.cuda())
    for expected, found in zip(plain, kernel, strict=True):
        torch.testing.assert_close(found.cpu(), expected, rtol=1e-4, atol=1e-4)
    expected = vocabulary.logits_gradient_(logits.clone(), labels, plain[1], weight)
    found = vocabulary.logits_gradient_(logits.cuda(), labels.cuda(), kernel[1], weight.cuda())
    torch.testing.assert_close(found.cpu(), expected, rtol=1e-2, atol=1e-3)
