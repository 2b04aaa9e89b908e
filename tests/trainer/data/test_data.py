"""Assignment of samples to batches, contents of a batch, order of the work, and prefetching."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dflash_trainer.config.schema import DataConfig
from dflash_trainer.data.arrow import ArrowSamples, write_samples
from dflash_trainer.data.batches import read_batch
from dflash_trainer.data.plan import BatchPlan, PlannedBatch
from dflash_trainer.data.prefetch import Prefetcher
from dflash_trainer.data.stream import StreamRange, StreamShape, work_stream

DATA = DataConfig(buckets=(16, 32, 64), batch_tokens=128, seed=3)


@pytest.fixture
def lengths() -> np.ndarray:
    """Return 101 lengths, some beyond the last bucket."""
    return np.random.default_rng(0).integers(4, 90, 101)


def epoch(plan: BatchPlan, number: int) -> list[PlannedBatch]:
    """Return all batches of an epoch."""
    return [plan.batch(number * plan.batches_per_epoch + i) for i in range(plan.batches_per_epoch)]


def test_every_sample_is_in_one_batch_per_epoch(lengths: np.ndarray) -> None:
    plan = BatchPlan(lengths, DATA)
    for number in range(3):
        assert Counter(i for batch in epoch(plan, number) for i in batch.sample_ids) == Counter(range(101))


def test_samples_are_in_the_smallest_bucket_that_fits(lengths: np.ndarray) -> None:
    for batch in epoch(BatchPlan(lengths, DATA), 0):
        assert len(batch.sample_ids) <= DATA.batch_size(batch.bucket)
        smaller = max((b for b in DATA.buckets if b < batch.bucket), default=0)
        for sample in batch.sample_ids:
            assert smaller < min(lengths[sample], 64) <= batch.bucket


def test_order_depends_only_on_seed_and_epoch(lengths: np.ndarray) -> None:
    one, two = BatchPlan(lengths, DATA), BatchPlan(lengths, DATA)
    total = 2 * one.batches_per_epoch
    forwards = [one.batch(i) for i in range(total)]
    backwards = [two.batch(i) for i in reversed(range(total))]
    assert forwards == backwards[::-1]
    orders = [[b.sample_ids for b in epoch(one, number)] for number in (0, 1)]
    other = BatchPlan(lengths, DataConfig(buckets=DATA.buckets, batch_tokens=128, seed=4))
    assert orders[0] != orders[1] and orders[0] != [b.sample_ids for b in epoch(other, 0)]


def test_batch_is_padded_to_its_bucket_and_padding_has_no_loss(tmp_path: Path) -> None:
    write_samples(tmp_path / "a.arrow", [("x", [5, 6, 7, 8], [0, 1, 1, 1]), ("y", [9] * 40, [0] + [1] * 39)])
    samples = ArrowSamples.open(tmp_path)
    batch = read_batch(samples, PlannedBatch(0, 0, 16, (0, 1)), rows=4, vocab_size=10)
    assert batch.input_ids_BL.shape == batch.loss_mask_BL.shape == (4, 16)
    assert batch.input_ids_BL[0].tolist() == [5, 6, 7, 8] + [0] * 12
    assert batch.loss_mask_BL[0].tolist() == [0, 1, 1, 1] + [0] * 12
    assert batch.input_ids_BL[1].tolist() == [9] * 16
    assert batch.loss_mask_BL[2:].sum() == 0
    assert batch.lengths_B.tolist() == [4, 16, 1, 1] and batch.tokens == 20


@pytest.mark.parametrize("drafters", [1, 2, 3])
def test_nodes_divide_the_batches_without_overlap(lengths: np.ndarray, drafters: int) -> None:
    plan = BatchPlan(lengths, DATA)
    span = StreamRange(first_step=1, last_step=5, next_batch=0)
    numbers = []
    for rank in range(2):
        shape = StreamShape(nodes=2, rank=rank, drafters=drafters, accumulate=2)
        numbers += [w.planned.number for w in work_stream(plan, None, shape, span)]
    assert sorted(numbers) == list(range(5 * 2 * drafters * 2))


def test_resumed_stream_equals_the_rest_of_the_stream(lengths: np.ndarray) -> None:
    plan, held_out = BatchPlan(lengths, DATA), BatchPlan(lengths[:9], DATA, shuffle=False)
    shape = StreamShape(drafters=2, accumulate=2)

    def stream(first: int) -> list[Any]:
        span = StreamRange(first_step=first, last_step=9, next_batch=(first - 1) * 4, evaluate_every=3)
        return [(w.kind, w.step, w.drafter, w.planned) for w in work_stream(plan, held_out, shape, span)]

    full = stream(1)
    assert stream(5) == [item for item in full if item[1] >= 5]
    assert Counter(item[1] for item in full if item[0] == "evaluate").keys() == {3, 6, 9}


def test_turns_of_a_drafter_count_without_gaps(lengths: np.ndarray) -> None:
    plan, held_out = BatchPlan(lengths, DATA), BatchPlan(lengths[:9], DATA, shuffle=False)
    span = StreamRange(first_step=1, last_step=7, next_batch=0, evaluate_every=2)
    works = list(work_stream(plan, held_out, StreamShape(drafters=3), span))
    for drafter in range(3):
        turns = [work.turn for work in works if work.drafter == drafter]
        assert turns == list(range(len(turns)))


def test_arrow_file_format_is_read(tmp_path: Path) -> None:
    import pyarrow as pa

    table = pa.table({"input_ids": pa.array([[1, 2], [3]]), "loss_mask": pa.array([[0, 1], [1]])})
    with pa.OSFile(str(tmp_path / "a.arrow"), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    samples = ArrowSamples.open(tmp_path)
    assert len(samples) == 2 and samples[1].input_ids.tolist() == [3] and samples.lengths.tolist() == [2, 1]
    assert samples.token_counts() == (3, 2)


def test_huggingface_dataset_keeps_its_order(tmp_path: Path) -> None:
    from datasets import Dataset

    rows = {"input_ids": [[i, i + 1, i + 2] for i in range(50)], "loss_mask": [[0, 1, 1]] * 50}
    Dataset.from_dict(rows).save_to_disk(str(tmp_path / "set"), num_shards=3)
    samples = ArrowSamples.open(tmp_path / "set")
    assert [samples[i].input_ids[0] for i in range(50)] == list(range(50))


def test_prefetcher_reads_only_depth_batches_ahead_and_raises_errors_in_take() -> None:
    read = []

    def items() -> Iterator[Any]:
        for i in range(5):
            read.append(i)
            yield i
        raise OSError("disk gone")

    prefetcher = Prefetcher(items(), depth=2)
    prefetcher.start()
    deadline = time.monotonic() + 10
    while len(read) < 3 and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.1)
    assert read == [0, 1, 2]
    assert [prefetcher.take() for _ in range(5)] == list(range(5))
    with pytest.raises(OSError, match="disk gone"):
        prefetcher.take()
    prefetcher.close()


def test_close_joins_the_thread_of_a_full_prefetcher() -> None:
    def endless() -> Iterator[Any]:
        while True:
            yield 0

    before = threading.active_count()
    prefetcher = Prefetcher(endless(), depth=1)
    prefetcher.start()
    prefetcher.close()
    assert prefetcher.take() is None
    assert threading.active_count() == before
