"""Memory-mapped Hugging Face datasets with the columns `input_ids` and `loss_mask`; each file is checked on opening."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa

from dflash_trainer.errors import InputError

_SCHEMA = pa.schema([("id", pa.string()), ("input_ids", pa.list_(pa.int32())), ("loss_mask", pa.list_(pa.int8()))])
_FINGERPRINT_SAMPLES = 1024


@dataclass(frozen=True)
class StoredSample:
    """One sample as stored: ids and mask of equal length [length]."""

    input_ids: np.ndarray
    loss_mask: np.ndarray


class ArrowSamples:
    """Random access to the samples of a dataset folder, without loading them into memory."""

    def __init__(self, tables: Sequence[pa.Table]) -> None:
        self._tables = tables
        self._starts = np.cumsum([0] + [table.num_rows for table in tables])
        self.lengths: np.ndarray = np.concatenate([_lengths(table["input_ids"]) for table in tables])

    @classmethod
    def open(cls, folder: Path) -> ArrowSamples:
        """Map and check every Arrow file of `folder`. Raises InputError that names the damaged file."""
        files = _data_files(folder)
        samples = cls([_open_file(file) for file in files])
        if not len(samples):
            raise InputError(f"{folder}: the dataset is empty", "create it again with the prepare command")
        return samples

    def __len__(self) -> int:
        return int(self._starts[-1])

    def __getitem__(self, index: int) -> StoredSample:
        table = int(np.searchsorted(self._starts, index, side="right")) - 1
        row = index - int(self._starts[table])
        return StoredSample(*(_row(self._tables[table][name], row) for name in ("input_ids", "loss_mask")))

    @cached_property
    def fingerprint(self) -> str:
        """Hash of all lengths and of up to 1024 evenly spaced samples; independent of the split into files."""
        digest = hashlib.sha256(self.lengths.tobytes())
        for index in np.linspace(0, len(self) - 1, min(len(self), _FINGERPRINT_SAMPLES)).astype(int).tolist():
            stored = self[index]
            digest.update(stored.input_ids.astype(np.int64).tobytes() + stored.loss_mask.astype(np.int64).tobytes())
        return digest.hexdigest()[:16]

    def token_counts(self) -> tuple[int, int]:
        """Return the number of tokens, and the number of supervised tokens."""
        supervised = 0
        for table in self._tables:
            for chunk in table["loss_mask"].chunks:
                supervised += int(np.count_nonzero(chunk.flatten().to_numpy(zero_copy_only=False)))
        return int(self.lengths.sum()), supervised


def write_samples(file: Path, rows: Iterable[tuple[str, Sequence[int], Sequence[int]]]) -> None:
    """Write (id, input_ids, loss_mask) rows as one Arrow stream file."""
    columns = list(zip(*rows, strict=True)) or [(), (), ()]
    arrays = [pa.array(column, type=field.type) for column, field in zip(columns, _SCHEMA, strict=True)]
    with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_stream(sink, _SCHEMA) as writer:
        writer.write_table(pa.table(arrays, schema=_SCHEMA))


def _data_files(folder: Path) -> list[Path]:
    """Return the Arrow files in the order of the dataset; all must exist."""
    state = folder / "state.json"
    if not folder.is_dir():
        raise InputError(
            f"data.path = {str(folder)!r}: no such folder",
            "create the dataset with the prepare command, or correct data.path",
        )
    if state.is_file():
        try:
            files = [folder / entry["filename"] for entry in json.loads(state.read_text())["_data_files"]]
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(f"{state}: cannot be read ({error})", "copy the dataset again") from error
    else:
        files = sorted(folder.glob("*.arrow"))
    missing = [str(file) for file in files if not file.is_file()]
    if missing or not files:
        problem = f"missing files: {', '.join(missing)}" if missing else "no .arrow file"
        raise InputError(f"{folder}: {problem}", "copy the dataset again")
    return files


def _open_file(file: Path) -> pa.Table:
    """Map one file (stream or file format) and check that its columns are complete and consistent."""
    try:
        source = pa.memory_map(str(file))
        try:
            table = pa.ipc.open_stream(source).read_all()
        except pa.ArrowInvalid:
            source.seek(0)
            table = pa.ipc.open_file(source).read_all()
        table.validate()
        _check_columns(file, table)
    except (pa.ArrowException, OSError, ValueError, IndexError) as error:
        raise InputError(
            f"{file}: damaged or truncated ({str(error).splitlines()[0]})", "copy this file again"
        ) from error
    return table


def _check_columns(file: Path, table: pa.Table) -> None:
    for name in ("input_ids", "loss_mask"):
        if name not in table.column_names:
            raise InputError(f"{file}: no column {name}", "create the dataset with the prepare command")
        kind = table[name].type
        if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)):
            raise InputError(
                f"{file}: column {name} is {kind}, not a list", "create the dataset with the prepare command"
            )
    lengths, masks = _lengths(table["input_ids"]), _lengths(table["loss_mask"])
    if not np.array_equal(lengths, masks):
        row = int(np.flatnonzero(lengths != masks)[0])
        raise InputError(
            f"{file}: row {row} has {lengths[row]} ids and {masks[row]} mask values",
            "create the dataset again with the prepare command",
        )
    if len(lengths) and lengths.min() < 0:
        raise InputError(f"{file}: damaged (a negative length)", "copy this file again")


def _lengths(column: pa.ChunkedArray) -> np.ndarray:
    parts = [np.diff(chunk.offsets.to_numpy()) for chunk in column.chunks]
    return np.concatenate(parts).astype(np.int64) if parts else np.zeros(0, np.int64)


def _row(column: pa.ChunkedArray, row: int) -> np.ndarray:
    values = column[row].values
    return np.asarray(values.to_numpy(zero_copy_only=False))
