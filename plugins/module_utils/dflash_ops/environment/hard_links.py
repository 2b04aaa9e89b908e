"""Files with several names: what an environment is made of must be written to under no other name."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path

SPARE = ".separate"


def shared(stats: Mapping[str, os.stat_result], *, names: int = 1) -> list[str]:
    """Return the files that have more than so many names."""
    return [name for name, one in stats.items() if one.st_nlink > names and stat.S_ISREG(one.st_mode)]


def separate(top: Path, names: Iterable[str]) -> None:
    """Replace files below `top` by copies that have no other name, each in one rename.

    The copies are made in one folder at the top, so nothing half is left among the files by whatever kills this; the
    folder is removed, also one from before.
    """
    spare = top / SPARE
    shutil.rmtree(spare, ignore_errors=True)
    spare.mkdir()
    for name in names:
        os.replace(shutil.copy2(top / name, spare / "copy"), top / name)
    spare.rmdir()
