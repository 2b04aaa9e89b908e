"""argparse types that reject unusable values before the work starts."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from pathlib import Path


def at_least(low: int) -> Callable[[str], int]:
    """Return a type for whole numbers of `low` or more."""

    def whole_number(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r}: not a whole number; use {low} or more") from None
        if value < low:
            raise argparse.ArgumentTypeError(f"{text}: too small; use {low} or more")
        return value

    return whole_number


def not_negative(text: str) -> float:
    """Parse a number of 0 or more."""
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: not a number; use 0 or more") from None
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text}: out of range; use 0 or more")
    return value


def file_to_write(text: str) -> Path:
    """Return the absolute path of a writable file; its folder need not exist yet."""
    path = Path(text).absolute()
    if path.is_dir():
        raise argparse.ArgumentTypeError(f"{text!r}: is a folder; name a file")
    _check_writable(text, path.parent)
    return path


def folder_to_write(text: str) -> Path:
    """Return the absolute path of a folder that exists or can be created."""
    path = Path(text).absolute()
    _check_writable(text, path)
    return path


def existing_folder(text: str) -> Path:
    """Return the absolute path of an existing folder."""
    path = Path(text).absolute()
    if not path.is_dir():
        raise argparse.ArgumentTypeError(f"{text!r}: no such folder; correct or omit it")
    return path


def _check_writable(text: str, folder: Path) -> None:
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    if not existing.is_dir():
        raise argparse.ArgumentTypeError(f"{text!r}: {existing} is not a folder; choose another path")
    if not os.access(existing, os.W_OK):
        raise argparse.ArgumentTypeError(f"{text!r}: {existing} is not writable; choose another path")
