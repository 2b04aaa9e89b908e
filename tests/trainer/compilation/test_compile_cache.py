"""Compile cache with the real trainer and CPU Inductor: cold, checked, damaged, restored, and used by a run."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sys
import time
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest
from tiny_runs import CONFIG, REPO, write_dataset

sys.path.append(str(REPO / "plugins" / "module_utils"))

from dflash_ops import resolved_config
from dflash_ops.compile_cache import cache, cache_archive, manifest, prewarm
from dflash_ops.compile_cache.prewarm import Archive
from dflash_ops.core import processes
from dflash_ops.core.errors import OpsError
from dflash_ops.core.gpus import Survey
from dflash_ops.core.jobs import Progress
from dflash_ops.core.paths import Layout
from dflash_ops.run import launch, metrics, run_processes, trainer_command
from dflash_ops.run.launch import Request
from dflash_ops.run.trainer_command import Selection

# One layer and one bucket, because each compiled graph adds seconds to a test.
TINY = CONFIG
for old, new in (("compile = false", "compile = true"), ("num_layers = 2", "num_layers = 1"), ("[16, 32]", "[16]")):
    TINY = TINY.replace(old, new)

pytestmark = pytest.mark.skipif(not shutil.which("g++"), reason="inductor needs a C++ compiler")


class Box:
    """Box with the environment of these tests and this checkout as its release."""

    def __init__(self, root: Path) -> None:
        self.layout = Layout.of(root)
        env, release = self.layout.env("e1"), self.layout.release("r1")
        venv.EnvBuilder(symlinks=True, with_pip=False).create(env)
        site = next((env / "lib").glob("python3.*")) / "site-packages"
        (site / "real.pth").write_text(f"{next(Path(sys.prefix).glob('lib/python3.*'))}/site-packages\n")
        (env / "env.json").write_text("{}")
        (release / "trainer" / "configs").mkdir(parents=True)
        (release / "trainer" / "dflash_trainer").symlink_to(REPO / "trainer" / "dflash_trainer")
        (release / "trainer" / "configs" / "tiny.toml").write_text(TINY)
        (release / "release.json").write_text('{"tree_hash": "t", "files": {}}')
        write_dataset(release / "trainer" / "configs" / "train", samples=24, seed=1)
        write_dataset(release / "trainer" / "configs" / "eval", samples=6, seed=2)
        self.selection = Selection("e1", "r1", "tiny.toml", extra=(("OMP_NUM_THREADS", "1"),))
        self.resolved = resolved_config.resolve(self.layout, self.selection)
        self.key = cache.cache_key(self.layout, self.selection, self.resolved, Survey(state="none"))
        self.folder = self.layout.cache(self.key.cache_id)
        job = root / "job"
        job.mkdir(parents=True)
        self.progress = Progress(job)

    def prewarm(self, archive: Archive | None = None) -> dict[str, object]:
        return prewarm.prewarm(self.layout, self.selection, self.key, self.progress, archive=archive)

    def warm_up(self) -> dict[str, object]:
        """Run one more process on the warm cache and return its report."""
        return prewarm.warm_up(self.layout, self.selection, self.folder, self.progress, name="refill")

    def state(self) -> cache.CacheState:
        return cache.inspect(self.layout, self.key)


@pytest.fixture(scope="module")
def warm_box(tmp_path_factory: pytest.TempPathFactory) -> Box:
    """Return a box with a warm cache, built once."""
    box = Box(tmp_path_factory.mktemp("cache") / "box")
    box.prewarm()
    return box


@pytest.fixture
def box(warm_box: Box) -> Iterator[Box]:
    """Yield the box and restore its warm cache after the test."""
    kept = warm_box.folder.with_name("kept")
    shutil.copytree(warm_box.folder, kept)
    yield warm_box
    for found in run_processes.running_processes(warm_box.layout).values():
        processes.send_signal(found, signal.SIGKILL)
    shutil.rmtree(warm_box.folder, ignore_errors=True)
    kept.rename(warm_box.folder)
    for quarantined in warm_box.layout.caches.glob("*.damaged-*"):
        shutil.rmtree(quarantined)


def test_cold_process_compiles_and_a_second_one_has_no_misses(warm_box: Box) -> None:
    state = warm_box.state()
    assert state.warm
    counters = state.cache_check["counters"]
    assert counters["fxgraph_cache_miss"] == counters["autograd_cache_miss"] == 0
    assert counters["autograd_cache_hit"] + counters["fxgraph_cache_hit"] > 0
    assert state.cache_check["cold_seconds"] > state.cache_check["warm_seconds"]
    assert {row["bucket"] for row in state.cache_check["covered"]} == {16}


def test_no_compiled_file_is_in_tmp(box: Box) -> None:
    """Check that precompiled headers, for which Inductor ignores its cache folder, are below the root too."""

    def headers() -> dict[str, int]:
        found = box.layout.tmp.rglob("precompiled_headers/**/*.gch")
        return {str(path): path.stat().st_mtime_ns for path in found}

    before = headers()
    assert before
    assert box.warm_up()["misses"] == 0
    assert headers() == before
    values = trainer_command.environment(box.layout, box.selection, cache=box.folder)
    assert [
        name for name, value in values.items() if value.startswith("/tmp") and str(box.layout.root) not in value
    ] == []


@pytest.mark.parametrize("harm", ["truncated", "garbage", "empty"])
def test_damage_is_detected_and_repaired(box: Box, harm: str) -> None:
    names = sorted(manifest.read_record(box.folder)["files"])
    damaged = random.Random(harm).sample(names, max(3, len(names) // 4))
    for name in damaged:
        path = box.folder / name
        data = path.read_bytes()
        path.write_bytes({"truncated": data[: len(data) // 2], "garbage": os.urandom(len(data)), "empty": b""}[harm])
    assert box.state().state == "damaged"
    box.prewarm()
    assert box.state().warm
    assert box.warm_up()["misses"] == 0


def test_cache_full_of_garbage_is_warm_after_a_prewarm(box: Box) -> None:
    (box.folder / "cache.json").unlink()
    for path in manifest.content_files(box.folder):
        path.write_bytes(os.urandom(200))
    box.prewarm()
    assert box.state().warm


def test_cache_that_cannot_be_read_back_is_not_warm(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.rmtree(box.folder)
    real = prewarm.warm_up

    def forgetful(*arguments: object, name: str) -> dict[str, object]:
        report = real(*arguments, name=name)  # type: ignore[arg-type]
        if name == "cold":
            shutil.rmtree(box.folder / "inductor")
        return report

    monkeypatch.setattr(prewarm, "warm_up", forgetful)
    with pytest.raises(OpsError, match="is not warm: a second process had"):
        box.prewarm()
    assert not (box.folder / "cache.json").exists()


def test_restored_archive_is_warm_without_compiling(box: Box) -> None:
    metadata = cache_archive.pack(box.layout, box.key)
    shutil.rmtree(box.folder)
    result = box.prewarm(Archive(Path(str(metadata["path"]))))
    assert result["cache_check"]["cold_seconds"] is None  # type: ignore[index]
    assert box.state().warm


@pytest.mark.skipif(not shutil.which("tmux"), reason="tmux is not installed")
def test_run_with_a_warm_cache_recompiles_nothing_and_keeps_the_cache_intact(box: Box) -> None:
    request = Request(selection=box.selection, label="tiny", cache_id=box.key.cache_id, resume="never")
    run = launch.start(box.layout, request, {"config": box.resolved["config"], "needs": box.resolved["needs"]})
    deadline = time.monotonic() + 180
    while len(rows := metrics.read_metrics(run.metrics)) < 5:
        assert time.monotonic() < deadline, run.log.read_text()
        assert not (run.folder / "exit.json").exists() or rows, run.log.read_text()
        time.sleep(0.2)
    assert [row["recompiles"] for row in rows] == [0] * len(rows)
    assert box.state().warm
    main = run_processes.main_process(run)
    if main is not None:
        values = processes.environment_of(main.pid)
        assert values["TORCHINDUCTOR_CACHE_DIR"] == str(box.folder / "inductor")
    assert json.loads((run.folder / "run.json").read_text())["cache_id"] == box.key.cache_id
