"""Types of command-line values: what cannot work is refused before the work begins, not when its result is written."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from pathlib import Path


def at_least(low: int) -> Callable[[str], int]:
    """A whole number of `low` or more."""

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
    """A number of 0 or more."""
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: not a number; use 0 or more") from None
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text}: out of range; use 0 or more")
    return value


def file_to_write(text: str) -> Path:
    """The absolute path of a file that can be written here; its folder may have to be made."""
    path = Path(text).absolute()
    if path.is_dir():
        raise argparse.ArgumentTypeError(f"{text!r}: is a folder; name a file")
    _check_place(text, path.parent)
    return path


def folder_to_write(text: str) -> Path:
    """The absolute path of a folder that is there or can be made."""
    path = Path(text).absolute()
    _check_place(text, path)
    return path


def folder_there(text: str) -> Path:
    """The absolute path of a folder that must be there."""
    path = Path(text).absolute()
    if not path.is_dir():
        raise argparse.ArgumentTypeError(f"{text!r}: no such folder; correct it or leave it out")
    return path


def _check_place(text: str, folder: Path) -> None:
    existing = next(place for place in (folder, *folder.parents) if place.exists())
    if not existing.is_dir():
        raise argparse.ArgumentTypeError(f"{text!r}: {existing} is no folder; name another place")
    if not os.access(existing, os.W_OK):
        raise argparse.ArgumentTypeError(f"{text!r}: {existing} cannot be written; name another place")
