"""Inputs: absent, damaged, new, recorded, changed; each told by file."""

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


def write_dataset(folder: Path, *, parts: int = 2) -> Path:
    """Write what `save_to_disk` leaves: parts in Arrow's stream format and the list of them."""
    names = [f"data-{number:05d}-of-{parts:05d}.arrow" for number in range(parts)]
    for name in names:
        files.write_bytes(folder / name, b"\xff\xff\xff\xff" + name.encode() * 10 + ARROW_END)
    files.write_json(folder / "state.json", {"_data_files": [{"filename": name} for name in names]})
    return folder


def write_safetensors(path: Path, *, body: int = 64) -> Path:
    header = json.dumps({"w": {"dtype": "F32", "shape": [16], "data_offsets": [0, 64]}}).encode()
    files.write_bytes(path, struct.pack("<Q", len(header)) + header + b"\0" * body)
    return path


@pytest.fixture
def dataset(tmp_path: Path) -> Input:
    return Input("dataset", write_dataset(tmp_path / "my data"))


def test_an_input_is_new_then_recorded(layout: Layout, dataset: Input) -> None:
    assert inputs.look(layout, dataset).state == "new"
    found = inputs.record(layout, dataset)
    assert inputs.look(layout, dataset, full=True).fingerprint == found
    assert not list(dataset.path.glob(".*"))


def test_absent_is_named(layout: Layout, tmp_path: Path) -> None:
    seen = inputs.look(layout, Input("target", tmp_path / "nope"))
    assert seen.state == "absent"
    assert seen.problems == (f"target: {tmp_path / 'nope'} is not there",)


def test_the_same_content_elsewhere_has_the_same_fingerprint(layout: Layout, dataset: Input, tmp_path: Path) -> None:
    other = Input("dataset", write_dataset(tmp_path / "other"))
    assert inputs.record(layout, dataset) == inputs.record(layout, other)


def test_changed_edited_added_and_removed_are_named(layout: Layout, dataset: Input) -> None:
    inputs.record(layout, dataset)
    first, second = sorted(dataset.path.glob("*.arrow"))
    first.write_bytes(b"\xff\xff\xff\xffother" + ARROW_END)
    files.write_text(dataset.path / "extra.json", "{}")
    seen = inputs.look(layout, dataset)
    assert seen.state == "changed"
    assert f"edited: {first.name}" in seen.problems[1]
    assert "added: extra.json" in seen.problems[0]
    second.unlink()
    seen = inputs.look(layout, dataset)
    assert seen.state == "damaged"
    assert f"{second} is missing, and listed" in seen.problems[0]


def test_a_new_time_alone_is_no_change(layout: Layout, dataset: Input) -> None:
    inputs.record(layout, dataset)
    for path in dataset.path.iterdir():
        os.utime(path)
    assert inputs.look(layout, dataset).state == "recorded"


def test_same_size_and_time_is_seen_by_the_full_check(layout: Layout, dataset: Input) -> None:
    inputs.record(layout, dataset)
    path = sorted(dataset.path.glob("*.arrow"))[0]
    stat = path.stat()
    path.write_bytes(path.read_bytes().replace(b"data", b"DATA"))
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert inputs.look(layout, dataset).state == "recorded"
    assert inputs.look(layout, dataset, full=True).state == "changed"


def test_case_68_a_truncated_arrow_file_is_named(layout: Layout, dataset: Input) -> None:
    path = sorted(dataset.path.glob("*.arrow"))[1]
    os.truncate(path, path.stat().st_size - 20)
    seen = inputs.look(layout, dataset)
    assert seen.state == "damaged"
    assert f"{path}: is cut off" in seen.problems[0]


def test_the_repositorys_own_data_is_whole(layout: Layout, repo: Path) -> None:
    for name in ("train", "eval"):
        assert inputs.look(layout, Input("dataset", repo / "trainer/data/demo" / name)).state == "new"


@pytest.mark.parametrize(("body", "told"), [(63, "its header says"), (65, "its header says"), (64, "")])
def test_safetensors_size_is_what_its_header_says(layout: Layout, tmp_path: Path, body: int, told: str) -> None:
    path = write_safetensors(tmp_path / "target/model.safetensors", body=body)
    seen = inputs.look(layout, Input("target", path.parent))
    assert (seen.state, told in "".join(seen.problems)) == ("damaged" if told else "new", True)


@pytest.mark.parametrize("data", [b"", b"\xff" * 8, struct.pack("<Q", 4) + b"{]]]"])
def test_a_file_that_is_no_safetensors_is_named(layout: Layout, tmp_path: Path, data: bytes) -> None:
    files.write_bytes(tmp_path / "model.safetensors", data)
    assert "safetensors header" in inputs.look(layout, Input("target", tmp_path / "model.safetensors")).problems[0]


def test_a_missing_shard_is_named(layout: Layout, tmp_path: Path) -> None:
    write_safetensors(tmp_path / "t/model-00001-of-00002.safetensors")
    files.write_json(
        tmp_path / "t/model.safetensors.index.json",
        {"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}},
    )
    assert (
        "model-00002-of-00002.safetensors is missing"
        in inputs.look(layout, Input("target", tmp_path / "t")).problems[0]
    )


def test_a_single_gguf_file_is_an_input(layout: Layout, tmp_path: Path) -> None:
    item = Input("target", tmp_path / "model.gguf")
    item.path.write_bytes(b"GGUF" + b"\0" * 100)
    inputs.record(layout, item)
    files.write_text(tmp_path / "neighbour.txt", "not of the input")
    assert inputs.look(layout, item).state == "recorded"
    item.path.write_bytes(b"GGML" + b"\0" * 100)
    assert "is no GGUF file" in inputs.look(layout, item).problems[0]


def test_big_inputs_are_recorded_by_a_job(layout: Layout, dataset: Input) -> None:
    work = {"root": str(layout.root), "workspace": "", "inputs": [[dataset.name, str(dataset.path)]]}
    jobs.start_or_attach(layout, "inputs", inputs.ENTRY, work)
    while (now := jobs.poll(layout, "inputs", wait=5)).state == "running":
        continue
    assert now.state == "done", now.log_tail
    assert inputs.look(layout, dataset).state == "recorded"


def test_random_weights_are_no_input() -> None:
    needs = {"data_path": "/d", "eval_path": "", "target_path": None}
    assert inputs.wanted({"needs": needs}) == [Input("dataset", Path("/d"))]
