"""Write a safetensors file in pieces and hash it while writing."""

from __future__ import annotations

import hashlib
import json
import os
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dflash_trainer.checkpoint.hashing import FileRecord

_NAMES = {
    torch.float32: "F32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


def write_tensors(file: Path, tensors: Mapping[str, Tensor]) -> FileRecord:
    """Write CPU tensors to `file` and fsync it; return size and hash of the data written."""
    header = json.dumps(_header(tensors), separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    digest = hashlib.sha256()
    size = 0
    with file.open("wb") as handle:
        for block in (struct.pack("<Q", len(header)), header, *map(_bytes, tensors.values())):
            handle.write(block)
            digest.update(block)
            size += len(block)
        handle.flush()
        os.fsync(handle.fileno())
    return {"size": size, "sha256": digest.hexdigest()}


def _header(tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, tensor in tensors.items():
        end = offset + tensor.numel() * tensor.element_size()
        entries[name] = {"dtype": _NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [offset, end]}
        offset = end
    return entries


def _bytes(tensor: Tensor) -> Any:
    return memoryview(tensor.contiguous().view(-1).view(torch.uint8).numpy())  # type: ignore[arg-type]
