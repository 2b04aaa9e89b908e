"""States of inputs: absent, damaged, new, recorded and changed, with one message per file."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path

import pytest
from dflash_ops import inputs
from dflash_ops.core import files, jobs
from dflash_ops.core.paths import Layout
from dflash_ops.inputs import ARROW_END, Input


def write_dataset(folder: Path, *, shards: int = 2) -> Path:
    """Write a dataset as `save_to_disk` does: Arrow stream files and their list in state.json."""
    names = [f"data-{number:05d}-of-{shards:05d}.arrow" for number in range(shards)]
    for name in names:
        files.write_bytes(folder / name, b"\xff\xff\xff\xff" + name.encode() * 10 + ARROW_END)
    files.write_json(folder / "state.json", {"_data_files": [{"filename": name} for name in names]})
    return folder


def write_safetensors(path: Path, *, body: int = 64) -> Path:
    """Write a safetensors file whose header describes 64 bytes of data, with `body` bytes."""
    header = json.dumps({"w": {"dtype": "F32", "shape": [16], "data_offsets": [0, 64]}}).encode()
    files.write_bytes(path, struct.pack("<Q", len(header)) + header + b"\0" * body)
    return path


@pytest.fixture
def dataset(tmp_path: Path) -> Input:
    """Dataset of two shards in a folder with a space in its name."""
    return Input("dataset", write_dataset(tmp_path / "my data"))


def test_input_is_new_until_recorded(layout: Layout, dataset: Input) -> None:
    assert inputs.inspect(layout, dataset).state == "new"
    fingerprint = inputs.record(layout, dataset)
    assert inputs.inspect(layout, dataset, full=True).fingerprint == fingerprint
    assert not list(dataset.path.glob(".*"))


def test_absent_input_is_reported(layout: Layout, tmp_path: Path) -> None:
    status = inputs.inspect(layout, Input("target", tmp_path / "nope"))
    assert status.state == "absent"
    assert status.problems == (f"target: {tmp_path / 'nope'} does not exist",)


def test_fingerprint_is_independent_of_the_location(layout: Layout, dataset: Input, tmp_path: Path) -> None:
    other = Input("dataset", write_dataset(tmp_path / "other"))
    assert inputs.record(layout, dataset) == inputs.record(layout, other)


def test_edited_added_and_removed_files_are_reported(layout: Layout, dataset: Input) -> None:
    inputs.record(layout, dataset)
    first, second = sorted(dataset.path.glob("*.arrow"))
    first.write_bytes(b"\xff\xff\xff\xffother" + ARROW_END)
    files.write_text(dataset.path / "extra.json", "{}")
    status = inputs.inspect(layout, dataset)
    assert status.state == "changed"
    assert f"edited: {first.name}" in status.problems[1]
    assert "added: extra.json" in status.problems[0]
    second.unlink()
    status = inputs.inspect(layout, dataset)
    assert status.state == "damaged"
    assert f"{second} is listed but missing" in status.problems[0]


def test_changed_mtime_alone_is_not_a_change(layout: Layout, dataset: Input) -> None:
    inputs.record(layout, dataset)
    for path in dataset.path.iterdir():
        os.utime(path)
    assert inputs.inspect(layout, dataset).state == "recorded"


def test_full_check_finds_an_edit_that_keeps_size_and_time(layout: Layout, dataset: Input) -> None:
    inputs.record(layout, dataset)
    path = sorted(dataset.path.glob("*.arrow"))[0]
    stat = path.stat()
    path.write_bytes(path.read_bytes().replace(b"data", b"DATA"))
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert inputs.inspect(layout, dataset).state == "recorded"
    assert inputs.inspect(layout, dataset, full=True).state == "changed"


def test_truncated_arrow_file_is_reported(layout: Layout, dataset: Input) -> None:
    path = sorted(dataset.path.glob("*.arrow"))[1]
    os.truncate(path, path.stat().st_size - 20)
    status = inputs.inspect(layout, dataset)
    assert status.state == "damaged"
    assert f"{path}: is truncated" in status.problems[0]


def test_demo_data_is_intact(layout: Layout, repo: Path) -> None:
    for name in ("train", "eval"):
        assert inputs.inspect(layout, Input("dataset", repo / "trainer/data/demo" / name)).state == "new"


@pytest.mark.parametrize(("body", "message"), [(63, "its header says"), (65, "its header says"), (64, "")])
def test_safetensors_size_is_compared_with_the_header(layout: Layout, tmp_path: Path, body: int, message: str) -> None:
    path = write_safetensors(tmp_path / "target/model.safetensors", body=body)
    status = inputs.inspect(layout, Input("target", path.parent))
    assert (status.state, message in "".join(status.problems)) == ("damaged" if message else "new", True)


@pytest.mark.parametrize("data", [b"", b"\xff" * 8, struct.pack("<Q", 4) + b"{]]]"])
def test_invalid_safetensors_header_is_reported(layout: Layout, tmp_path: Path, data: bytes) -> None:
    files.write_bytes(tmp_path / "model.safetensors", data)
    assert "safetensors header" in inputs.inspect(layout, Input("target", tmp_path / "model.safetensors")).problems[0]


def test_missing_shard_is_reported(layout: Layout, tmp_path: Path) -> None:
    write_safetensors(tmp_path / "t/model-00001-of-00002.safetensors")
    files.write_json(
        tmp_path / "t/model.safetensors.index.json",
        {"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}},
    )
    assert (
        "model-00002-of-00002.safetensors is listed but missing"
        in inputs.inspect(layout, Input("target", tmp_path / "t")).problems[0]
    )


def test_single_gguf_file_is_an_input(layout: Layout, tmp_path: Path) -> None:
    item = Input("target", tmp_path / "model.gguf")
    item.path.write_bytes(b"GGUF" + b"\0" * 100)
    inputs.record(layout, item)
    files.write_text(tmp_path / "other.txt", "outside the input")
    assert inputs.inspect(layout, item).state == "recorded"
    item.path.write_bytes(b"GGML" + b"\0" * 100)
    assert "is not a GGUF file" in inputs.inspect(layout, item).problems[0]


def test_job_records_inputs(layout: Layout, dataset: Input) -> None:
    arguments = {"root": str(layout.root), "workspace": "", "inputs": [[dataset.name, str(dataset.path)]]}
    jobs.start_or_attach(layout, "inputs", inputs.ENTRY, arguments)
    while (job := jobs.poll(layout, "inputs", wait=5)).state == "running":
        continue
    assert job.state == "done", job.log_tail
    assert inputs.inspect(layout, dataset).state == "recorded"


def test_random_weights_are_not_an_input() -> None:
    needs = {"data_path": "/d", "eval_path": "", "target_path": None}
    assert inputs.required_inputs({"needs": needs}) == [Input("dataset", Path("/d"))]
