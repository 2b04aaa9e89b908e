"""What is done beside uv decides nothing: hashes of touched files, bytecode without a source, files in the making."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from dflash_ops.core import tree_manifest
from dflash_ops.environment import bytecode
from dflash_ops.environment.prehash import Early


@pytest.fixture
def site(tmp_path: Path) -> Path:
    place = tmp_path / "env/lib/python3/site-packages"
    place.mkdir(parents=True)
    return place


def test_a_file_that_was_touched_after_it_was_hashed_is_hashed_again(tmp_path: Path) -> None:
    file = tmp_path / "a.py"
    file.write_text("x = 1\n")
    known = {"a.py": tree_manifest.hash_file(str(file))}
    assert tree_manifest.manifest(tmp_path, known=known)["a.py"][2] == known["a.py"].sha256
    stat = file.stat()
    file.write_text("x = 2\n")
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))  # the same size and time, other bytes
    found = tree_manifest.manifest(tmp_path, known=known)["a.py"][2]
    assert found == tree_manifest.digest(file) != known["a.py"].sha256


def test_known_hashes_are_used(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("")
    told = tree_manifest.FileHash(tree_manifest.stamp((tmp_path / "a").lstat()), "told")
    assert tree_manifest.manifest(tmp_path, known={"a": told})["a"][2] == "told"


def test_only_what_a_scan_found_is_in_a_manifest(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("")
    stats = tree_manifest.scan(tmp_path)
    (tmp_path / "being-written").write_text("")
    assert list(tree_manifest.manifest(tmp_path, stats)) == ["a"]


def test_settling_fixes_times_and_removes_bytecode_without_a_source(site: Path) -> None:
    env = site.parents[2]
    (site / "p/__pycache__").mkdir(parents=True)
    for name in ("p/a.py", "p/__pycache__/a.cpython-311.pyc", "p/__pycache__/gone.cpython-311.pyc", "p/b.pyc"):
        (site / name).write_text("")
    stats = bytecode.settle(env)
    assert stats == tree_manifest.scan(env)
    assert (site / "p/a.py").stat().st_mtime == bytecode.SOURCE_TIME
    assert sorted(path.name for path in env.rglob("*.pyc")) == ["a.cpython-311.pyc", "b.pyc"]


@pytest.mark.parametrize("link", [True, False])
def test_kept_bytecode_comes_back_linked_or_copied(site: Path, tmp_path: Path, link: bool) -> None:
    env, store = site.parents[2], tmp_path / "kept"
    (site / "p/__pycache__").mkdir(parents=True)
    (site / "p/__pycache__/a.cpython-311.pyc").write_text("compiled")
    (site / "p/a.py").write_text("")
    bytecode.keep(env, store, tree_manifest.manifest(env))
    bytecode.drop(env)
    assert not list(env.rglob("*.pyc"))
    bytecode.restore(env, store, link=link)
    assert [(path.read_text(), path.stat().st_nlink) for path in env.rglob("*.pyc")] == [("compiled", 1 + link)]
    bytecode.keep(env, store, {})  # what is kept stays
    assert [path.stat().st_nlink for path in store.rglob("*.pyc")] == [1 + link]


@pytest.mark.parametrize("link", [True, False])
def test_kept_bytecode_replaces_nothing_and_brings_nothing_else(site: Path, tmp_path: Path, link: bool) -> None:
    env, store = site.parents[2], tmp_path / "kept"
    inside = site.relative_to(env)
    for name, text in (("p/__pycache__/a.cpython-311.pyc", "kept"), ("p/a.py", "planted"), ("evil.pth", "planted")):
        (store / inside / name).parent.mkdir(parents=True, exist_ok=True)
        (store / inside / name).write_text(text)
    (site / "p/__pycache__").mkdir(parents=True)
    (site / "p/__pycache__/a.cpython-311.pyc").write_text("of its wheel")
    bytecode.restore(env, store, link=link)
    assert {path.name: path.read_text() for path in env.rglob("*") if path.is_file()} == {
        "a.cpython-311.pyc": "of its wheel"
    }


def test_bytecode_that_was_half_kept_is_kept_anew(site: Path, tmp_path: Path) -> None:
    env, store = site.parents[2], tmp_path / "kept"
    (site / "p/__pycache__").mkdir(parents=True)
    (site / "p/__pycache__/a.cpython-311.pyc").write_text("compiled")
    half = tmp_path / ".kept/p/__pycache__"
    half.mkdir(parents=True)
    (half / "half.cpython-311.pyc").write_text("")
    bytecode.keep(env, store, tree_manifest.manifest(env))
    assert [path.name for path in store.rglob("*.pyc")] == ["a.cpython-311.pyc"]


def test_bytecode_that_is_not_as_recorded_is_not_kept(site: Path, tmp_path: Path) -> None:
    env, store = site.parents[2], tmp_path / "kept"
    (site / "p/__pycache__").mkdir(parents=True)
    for name in ("same", "edited"):
        (site / f"p/__pycache__/{name}.cpython-311.pyc").write_text("compiled")
    recorded = tree_manifest.manifest(env)
    (site / "p/__pycache__/edited.cpython-311.pyc").write_text("Compiled")
    (site / "p/__pycache__/added.cpython-311.pyc").write_text("compiled")
    bytecode.keep(env, store, recorded)
    assert [path.name for path in store.rglob("*.pyc")] == ["same.cpython-311.pyc"]


def test_packages_are_hashed_once_uv_has_finished_them(site: Path, tmp_path: Path) -> None:
    env = site.parents[2]
    for name, last in (("done", "done-1.dist-info/INSTALLER,,\n"), ("half", "")):
        (site / f"{name}.py").write_text("")
        (site / f"{name}-1.dist-info").mkdir()
        (site / f"{name}-1.dist-info/RECORD").write_text(f"{name}.py,sha256=x,0\n{last}")
    (site / "done-1.dist-info/INSTALLER").write_text("uv")
    early = Early(env, site, tmp_path / "no-store", link=False)
    with early:
        while len(early.known) < 2:
            threading.Event().wait(0.01)
    assert set(early.known) == {f"lib/python3/site-packages/{one}" for one in ("done.py", "done-1.dist-info/INSTALLER")}
    assert tree_manifest.manifest(env, known=early.known) == tree_manifest.manifest(env)
