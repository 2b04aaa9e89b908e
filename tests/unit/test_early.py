"""What is done beside uv decides nothing: hashes of touched files, bytecode without a source, files in the making."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from dflash_ops import bytecode, fingerprint
from dflash_ops.early import Early


@pytest.fixture
def site(tmp_path: Path) -> Path:
    place = tmp_path / "env/lib/python3/site-packages"
    place.mkdir(parents=True)
    return place


def test_a_file_that_was_touched_after_it_was_hashed_is_hashed_again(tmp_path: Path) -> None:
    file = tmp_path / "a.py"
    file.write_text("x = 1\n")
    known = {"a.py": fingerprint.hashed(str(file))}
    assert fingerprint.manifest(tmp_path, known=known)["a.py"][2] == known["a.py"].sha256
    stat = file.stat()
    file.write_text("x = 2\n")
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))  # the same size and time, other bytes
    assert fingerprint.manifest(tmp_path, known=known)["a.py"][2] == fingerprint.digest(file) != known["a.py"].sha256


def test_known_hashes_are_used(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("")
    told = fingerprint.Hashed(fingerprint.stamp((tmp_path / "a").lstat()), "told")
    assert fingerprint.manifest(tmp_path, known={"a": told})["a"][2] == "told"


def test_bytecode_that_is_being_written_is_not_looked_at(tmp_path: Path) -> None:
    cache = tmp_path / "p/__pycache__"
    cache.mkdir(parents=True)
    (tmp_path / "p/a.py").write_text("")
    over = threading.Event()

    def write() -> None:
        while not over.is_set():
            for number in range(50):
                (cache / f"a.{number}").write_text("")
                (cache / f"a.{number}").unlink()

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(200):
            assert list(fingerprint.manifest(tmp_path, bytecode=False)) == ["p/a.py"]
    finally:
        over.set()
        writer.join()


def test_settling_fixes_times_and_removes_bytecode_without_a_source(site: Path) -> None:
    env = site.parents[2]
    (site / "p/__pycache__").mkdir(parents=True)
    for name in ("p/a.py", "p/__pycache__/a.cpython-311.pyc", "p/__pycache__/gone.cpython-311.pyc", "p/b.pyc"):
        (site / name).write_text("")
    bytecode.settle(env)
    assert (site / "p/a.py").stat().st_mtime == bytecode.SOURCE_TIME
    assert sorted(path.name for path in env.rglob("*.pyc")) == ["a.cpython-311.pyc", "b.pyc"]


def test_kept_bytecode_comes_back_and_a_broken_archive_goes(site: Path, tmp_path: Path) -> None:
    env, store = site.parents[2], tmp_path / "kept.tar"
    (site / "p/__pycache__").mkdir(parents=True)
    (site / "p/__pycache__/a.cpython-311.pyc").write_text("compiled")
    (site / "p/a.py").write_text("")
    bytecode.keep(env, store)
    bytecode.drop(env)
    assert not list(env.rglob("*.pyc"))
    bytecode.restore(env, store)
    assert [path.read_text() for path in env.rglob("*.pyc")] == ["compiled"]
    store.write_bytes(store.read_bytes()[:700])
    bytecode.restore(env, store)
    assert not store.exists()


def test_packages_are_hashed_once_uv_has_finished_them(site: Path, tmp_path: Path) -> None:
    env = site.parents[2]
    for name, last in (("done", "done-1.dist-info/INSTALLER,,\n"), ("half", "")):
        (site / f"{name}.py").write_text("")
        (site / f"{name}-1.dist-info").mkdir()
        (site / f"{name}-1.dist-info/RECORD").write_text(f"{name}.py,sha256=x,0\n{last}")
    (site / "done-1.dist-info/INSTALLER").write_text("uv")
    early = Early(env, site, tmp_path / "no-store.tar")
    with early:
        while len(early.known) < 2:
            threading.Event().wait(0.01)
    assert set(early.known) == {f"lib/python3/site-packages/{one}" for one in ("done.py", "done-1.dist-info/INSTALLER")}
    assert fingerprint.manifest(env, known=early.known) == fingerprint.manifest(env)
