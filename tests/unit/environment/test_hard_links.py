"""Files with several names are found, and each gets an inode of its own without a moment in which it is missing."""

from __future__ import annotations

import os
from pathlib import Path

from dflash_ops.core import tree_manifest
from dflash_ops.environment import hard_links


def test_a_shared_file_is_separated_with_its_mode_and_time(tmp_path: Path) -> None:
    one, other = tmp_path / "cache/a/run", tmp_path / "env/run"
    one.parent.mkdir(parents=True)
    other.parent.mkdir()
    one.write_text("bytes")
    one.chmod(0o755)
    os.utime(one, (1, 1))
    os.link(one, other)
    (tmp_path / "cache/alone").write_text("")
    (tmp_path / "cache/link").symlink_to("a/run")
    os.link(tmp_path / "cache/link", tmp_path / "env/link", follow_symlinks=False)
    names = hard_links.shared(tree_manifest.scan(tmp_path / "cache"))
    assert names == ["a/run"]
    assert hard_links.shared(tree_manifest.scan(tmp_path / "cache"), names=2) == []
    hard_links.separate(tmp_path / "cache", names)
    assert one.stat().st_ino != other.stat().st_ino
    assert (one.read_text(), one.stat().st_mode & 0o777, one.stat().st_mtime) == ("bytes", 0o755, 1)
    other.write_text("edited")
    assert one.read_text() == "bytes"


def test_what_a_killed_one_left_goes(tmp_path: Path) -> None:
    (tmp_path / hard_links.SPARE).mkdir()
    (tmp_path / hard_links.SPARE / "copy").write_text("half")
    hard_links.separate(tmp_path, [])
    assert list(tmp_path.iterdir()) == []
