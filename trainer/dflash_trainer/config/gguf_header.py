"""Header of a GGUF file: key-value pairs and tensor shapes, without the weights."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from dflash_trainer.errors import InputError

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9


@dataclass(frozen=True)
class GgufHeader:
    """`values` by key, without arrays; `tensors` are shapes by name, fastest dimension first."""

    values: dict[str, Any]
    tensors: dict[str, tuple[int, ...]]


def read_gguf_header(path: Path) -> GgufHeader:
    """Read the header. Raises InputError when the file is not GGUF or is truncated."""
    try:
        with path.open("rb") as file:
            if file.read(4) != b"GGUF":
                raise InputError(f"{path}: not a GGUF file", "download the weights again")
            _version, tensors, pairs = _unpack(file, "<IQQ")
            values = {key: value for key, value in (_pair(file) for _ in range(pairs)) if value is not None}
            return GgufHeader(values, dict(_tensor(file) for _ in range(tensors)))
    except (OSError, struct.error, UnicodeDecodeError, KeyError, OverflowError) as error:
        raise InputError(f"{path}: the GGUF header cannot be read ({error})", "download the weights again") from error


def _unpack(file: BinaryIO, layout: str) -> tuple[Any, ...]:
    return struct.unpack(layout, file.read(struct.calcsize(layout)))


def _string(file: BinaryIO) -> str:
    (length,) = _unpack(file, "<Q")
    data = file.read(length)
    if len(data) != length:
        raise struct.error("truncated")
    return data.decode("utf-8", errors="replace")


def _pair(file: BinaryIO) -> tuple[str, Any]:
    key = _string(file)
    (kind,) = _unpack(file, "<I")
    if kind == _ARRAY:
        _skip_array(file)
        return key, None
    return key, _string(file) if kind == _STRING else _unpack(file, "<" + _SCALARS[kind])[0]


def _skip_array(file: BinaryIO) -> None:
    kind, count = _unpack(file, "<IQ")
    if kind == _STRING:
        for _ in range(count):
            _string(file)
    else:
        file.seek(count * struct.calcsize("<" + _SCALARS[kind]), 1)


def _tensor(file: BinaryIO) -> tuple[str, tuple[int, ...]]:
    name = _string(file)
    (rank,) = _unpack(file, "<I")
    shape = _unpack(file, f"<{rank}Q")
    _unpack(file, "<IQ")
    return name, shape
