"""Verify an exported drafter: read it back from the disk and compare every key and tensor."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from dflash_trainer.errors import InputError

_FORBIDDEN = ("partial_rotary_factor", "mrope_section", "mrope_interleaved", "rope_parameters")
"""Rotary embedding keys of a target that must not appear in a drafter's configuration."""


def check_export(folder: Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Compare the files with the expected configuration and tensors.

    Raises:
        InputError: naming the first key or tensor that differs.
    """
    written = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    wrong = sorted(key for key in written.keys() | config.keys() if written.get(key) != config.get(key))
    wrong += [key for key in _FORBIDDEN if key in written]
    if wrong:
        raise _differs(folder, f"config.json: {wrong[0]}")
    try:
        with safe_open(folder / "model.safetensors", framework="pt") as file:
            names = set(file.keys())
            wrong = sorted(names ^ tensors.keys())
            wrong += [name for name in tensors if name in names and not _same(file.get_tensor(name), tensors[name])]
    except (OSError, SafetensorError) as error:
        raise _differs(folder, f"model.safetensors cannot be read ({error})") from error
    if wrong:
        raise _differs(folder, f"{len(wrong)} tensors, such as {wrong[0]}")


def _same(found: Tensor, expected: Tensor) -> bool:
    return found.dtype == expected.dtype and found.shape == expected.shape and torch.equal(found, expected)


def _differs(folder: Path, what: str) -> InputError:
    return InputError(
        f"{folder}: the exported files differ from the drafter: {what}", "check the disk, then export again"
    )
