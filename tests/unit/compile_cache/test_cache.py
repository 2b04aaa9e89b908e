"""Compile cache: prewarm, check in a second process, damage, wipe, archives and locks."""

from __future__ import annotations

import json
import os
import platform
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from boxes import Box, until
from dflash_ops import resolved_config
from dflash_ops.compile_cache import cache, cache_archive, prewarm, prewarm_job
from dflash_ops.compile_cache.cache import CacheKey
from dflash_ops.compile_cache.prewarm import Archive
from dflash_ops.core import files, gpus, jobs, processes
from dflash_ops.core.errors import OpsError
from dflash_ops.core.gpus import Gpu, Survey
from dflash_ops.core.jobs import Progress
from dflash_ops.history import prune
from dflash_ops.run import trainer_command
from dflash_ops.run.trainer_command import Selection


@pytest.fixture
def box(tmp_path: Path) -> Box:
    return Box(tmp_path / "root with space")


@pytest.fixture
def progress(tmp_path: Path) -> Progress:
    (tmp_path / "job").mkdir()
    return Progress(tmp_path / "job")


def key_of(box: Box, selection: Selection) -> CacheKey:
    return cache.cache_key(box.layout, selection, resolved_config.resolve(box.layout, selection), Survey(state="none"))


def run_prewarm(box: Box, progress: Progress, *overrides: str, wipe: bool = False) -> dict[str, object]:
    selection = box.select(*overrides)
    return prewarm.prewarm(box.layout, selection, key_of(box, selection), progress, wipe=wipe)


def restore(box: Box, progress: Progress, archive: Path, *overrides: str, required: bool = True) -> dict[str, object]:
    selection = box.select(*overrides)
    source = Archive(archive, required=required)
    return prewarm.prewarm(box.layout, selection, key_of(box, selection), progress, archive=source)


def lines_of(progress: Progress) -> str:
    return (progress.folder / "lines").read_text()


def test_cold_cache_is_warm_after_a_prewarm_and_then_unchanged(box: Box, progress: Progress) -> None:
    key = key_of(box, box.select())
    assert cache.inspect(box.layout, key).state == "cold"
    result = run_prewarm(box, progress)
    assert "is cold: nothing is compiled yet" in lines_of(progress)
    state = cache.inspect(box.layout, key)
    assert state.warm
    assert state.cache_check["misses"] == 0
    assert state.cache_check["cold_seconds"] > state.cache_check["warm_seconds"]
    assert state.cache_check["covered"] == [{"device": "cpu", "worker": "drafter[0]", "bucket": 64}]
    assert result["changed"] is True
    assert run_prewarm(box, progress)["changed"] is False


@pytest.mark.parametrize("second", ["fails", "misses"])
def test_cache_is_warm_only_after_a_second_process_without_misses(box: Box, progress: Progress, second: str) -> None:
    with pytest.raises(OpsError):
        run_prewarm(box, progress, f"test.second={second}")
    selection = box.select(f"test.second={second}")
    key = key_of(box, selection)
    assert not cache.inspect(box.layout, key).warm
    assert not (box.layout.cache(key.cache_id) / "cache.json").exists()


@pytest.mark.parametrize(
    "harm",
    [
        lambda p: p.write_bytes(b""),
        lambda p: p.write_bytes(os.urandom(p.stat().st_size)),
        lambda p: p.unlink(),
        lambda p: p.write_text(p.read_text()[:7]),
    ],
)
def test_damaged_files_are_reported_and_rebuilt(
    box: Box, progress: Progress, harm: Callable[[Path], object]
) -> None:
    run_prewarm(box, progress)
    key = key_of(box, box.select())
    damaged = box.layout.cache(key.cache_id) / "inductor" / "l2-s1"
    harm(damaged)
    state = cache.inspect(box.layout, key)
    assert (state.state, state.damaged) == ("damaged", ("inductor/l2-s1",))
    run_prewarm(box, progress)
    assert cache.inspect(box.layout, key).warm
    assert "deleted inductor/l2-s1: it is damaged" in lines_of(progress)


def test_remeasured_kernel_config_is_not_damage_but_a_truncated_one_is(box: Box, progress: Progress) -> None:
    key = key_of(box, box.select())
    choice = box.layout.cache(key.cache_id) / "inductor" / "f3" / "036e.best_config"
    choice.parent.mkdir(parents=True)
    choice.write_text('{"XBLOCK": 1, "configs_hash": "aa", "time_taken_ms": 29}')
    run_prewarm(box, progress)
    choice.write_text('{"XBLOCK": 2, "configs_hash": "aa", "time_taken_ms": 131}')
    assert cache.inspect(box.layout, key).warm
    for broken in ('{"XBLOCK": 2, "config', '["configs_hash"]', "[" * 100_000):
        choice.write_text(broken)
        assert cache.inspect(box.layout, key).damaged == ("inductor/f3/036e.best_config",)


def test_cache_that_crashes_the_warm_up_is_rebuilt_once_and_quarantined(box: Box, progress: Progress) -> None:
    run_prewarm(box, progress)
    key = key_of(box, box.select())
    folder = box.layout.cache(key.cache_id)
    (folder / "cache.json").unlink()
    (folder / "inductor" / "l2-s0").write_text("garbage")
    run_prewarm(box, progress, "test.garbage=crashes")
    assert len(list(box.layout.caches.glob(f"{key.cache_id}.damaged-*"))) == 1
    assert "rebuilding it once" in lines_of(progress)


def test_cache_with_a_truncated_record_is_partial(box: Box, progress: Progress) -> None:
    run_prewarm(box, progress)
    key = key_of(box, box.select())
    (box.layout.cache(key.cache_id) / "cache.json").write_text("{")
    assert cache.inspect(box.layout, key).state == "partial"
    run_prewarm(box, progress)
    assert cache.inspect(box.layout, key).warm


def test_changed_shapes_are_prewarmed_and_old_shapes_stay_covered(box: Box, progress: Progress) -> None:
    run_prewarm(box, progress)
    old, new = key_of(box, box.select()), key_of(box, box.select("drafter.num_layers=3"))
    assert old.cache_id == new.cache_id
    assert cache.inspect(box.layout, new).state == "partial"
    run_prewarm(box, progress, "drafter.num_layers=3")
    assert f"cache {new.cache_id} is partial: the configuration or the code changed" in lines_of(progress)
    assert cache.inspect(box.layout, old).warm
    assert cache.inspect(box.layout, new).warm


def test_learning_rate_does_not_change_the_shape_id(box: Box) -> None:
    assert key_of(box, box.select()).shape_id == key_of(box, box.select("optimizer.lr=1")).shape_id


def test_changed_code_needs_a_new_check(box: Box, progress: Progress) -> None:
    run_prewarm(box, progress)
    box.add_release("r2")
    (box.layout.release("r2") / "trainer/dflash_trainer/__init__.py").write_text("# changed\n")
    selection = Selection(env_id="e1", release_id="r2", config="demo.toml")
    assert cache.inspect(box.layout, key_of(box, selection)).state == "partial"


def test_cache_id_depends_on_environment_and_gpu_model(box: Box) -> None:
    def cache_id(model: str, env_id: str = "e1") -> str:
        found = Survey(state="ok", gpus=(Gpu(0, "u", model, "570", 1, 1, 0),))
        selection = Selection(env_id=env_id, release_id="r1", config="demo.toml")
        return cache.cache_key(box.layout, selection, {"config": {}, "needs": {"gpus": 1}}, found).cache_id

    box.add_environment("e2")
    assert len({cache_id("NVIDIA H200"), cache_id("NVIDIA H100"), cache_id("NVIDIA H200", "e2")}) == 3
    assert cache_id("NVIDIA H200") == cache_id("NVIDIA H200")


def test_wipe_keeps_the_old_cache_until_the_new_one_is_checked(box: Box, progress: Progress) -> None:
    run_prewarm(box, progress)
    key = key_of(box, box.select())
    folder = box.layout.cache(key.cache_id)
    before = files.read_json(folder / "cache.json")
    with pytest.raises(OpsError):
        selection = box.select("test.second=misses")
        prewarm.prewarm(box.layout, selection, key, progress, wipe=True)
    assert files.read_json(folder / "cache.json") == before
    assert cache.inspect(box.layout, key).warm
    (folder / "inductor" / "stray").write_text("old")
    assert run_prewarm(box, progress, wipe=True)["changed"] is True
    assert "A wipe is rarely needed" in lines_of(progress)
    assert not (folder / "inductor" / "stray").exists()
    assert not list(box.layout.caches.glob("*.before"))


def test_prewarm_after_a_killed_wipe_restores_the_old_cache(box: Box, progress: Progress) -> None:
    run_prewarm(box, progress)
    key = key_of(box, box.select())
    folder = box.layout.cache(key.cache_id)
    os.rename(folder, folder.with_name(folder.name + ".before"))
    (folder / "inductor").mkdir(parents=True)
    (folder / "inductor" / "half").write_text("x")
    assert run_prewarm(box, progress)["changed"] is False
    assert not (folder / "inductor" / "half").exists()


@pytest.mark.skipif(not shutil.which("tmux"), reason="tmux is not installed")
def test_wipe_and_prewarm_are_rejected_while_a_run_is_running(box: Box, progress: Progress) -> None:
    run_prewarm(box, progress)
    run = box.launch()
    try:
        warm = cache.inspect(box.layout, key_of(box, box.select()))
        cold = cache.inspect(box.layout, key_of(box, box.select("drafter.num_layers=7")))
        cache.require_no_run(box.layout, warm, wipe=False)
        with pytest.raises(OpsError, match=f"compile_cache_wipe is true while run {run.run_id} is running") as rejected:
            cache.require_no_run(box.layout, warm, wipe=True)
        assert "rarely needed" in rejected.value.remedy
        with pytest.raises(OpsError, match="is running on the same devices"):
            cache.require_no_run(box.layout, cold, wipe=False)
    finally:
        box.end()


def test_second_concurrent_prewarm_waits_and_finds_the_cache_warm(box: Box) -> None:
    selection = box.select("test.compile=0.3")
    key = key_of(box, selection)

    def start(name: str) -> None:
        jobs.start_or_attach(box.layout, name, prewarm_job.ENTRY, prewarm_job.arguments(box.layout, selection, key))

    start("one")
    until(lambda: any("starting" in line for line in jobs.poll(box.layout, "one").lines))
    start("two")
    until(lambda: all(jobs.poll(box.layout, name).state == "done" for name in ("one", "two")))
    changed = [jobs.poll(box.layout, name).exit["result"]["changed"] for name in ("one", "two")]
    assert changed == [True, False]
    assert "waiting for it" in "".join(jobs.poll(box.layout, "two").lines)


def test_archive_restored_on_a_rebuilt_box_is_checked_again(box: Box, progress: Progress, tmp_path: Path) -> None:
    run_prewarm(box, progress)
    key = key_of(box, box.select())
    metadata = cache_archive.pack(box.layout, key)
    assert cache_archive.is_current(box.layout, key)
    archive = Path(str(metadata["path"]))
    shutil.rmtree(box.layout.cache(key.cache_id))
    result = restore(box, progress, archive)
    assert cache.inspect(box.layout, key).warm
    assert result["cache_check"]["cold_seconds"] is None  # type: ignore[index]
    assert lines_of(progress).count("starting the warm-up") == 3  # cold, check, and one after the restore


def test_damaged_archive_is_rejected_and_changes_nothing(box: Box, progress: Progress) -> None:
    run_prewarm(box, progress)
    key = key_of(box, box.select())
    archive = Path(str(cache_archive.pack(box.layout, key)["path"]))
    data = bytearray(archive.read_bytes())
    data[len(data) // 2] ^= 1
    archive.write_bytes(data)
    with pytest.raises(OpsError, match="is damaged: its sha256"):
        restore(box, progress, archive, "drafter.num_layers=3")
    assert cache.inspect(box.layout, key).warm


def test_archive_of_other_hardware_is_rejected(box: Box, progress: Progress) -> None:
    run_prewarm(box, progress)
    key = key_of(box, box.select())
    archive = Path(str(cache_archive.pack(box.layout, key)["path"]))
    metadata = json.loads(cache_archive.metadata_path(archive).read_text())
    cache_archive.metadata_path(archive).write_text(json.dumps({**metadata, "hardware": "NVIDIA H100"}))
    with pytest.raises(OpsError, match="was made for hardware 'NVIDIA H100'"):
        restore(box, progress, archive, "drafter.num_layers=3")


def test_unchecked_cache_is_not_packed(box: Box) -> None:
    with pytest.raises(OpsError, match="Only a checked cache can be packed"):
        cache_archive.pack(box.layout, key_of(box, box.select()))


def test_cache_folders_are_below_the_root_and_not_in_tmp(box: Box) -> None:
    key = box.layout.cache("c1")
    values = trainer_command.environment(box.layout, box.select(), cache=key)
    for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "FLA_CACHE_DIR"):
        assert values[name].startswith(str(box.layout.root))


def test_cpu_model_names_instruction_sets() -> None:
    model = cache.cpu_model()
    assert platform.machine() in model
    assert "unknown" not in model
    if platform.machine() == "x86_64":
        assert ("avx2" in model) == (" avx2 " in Path("/proc/cpuinfo").read_text())
    assert gpus.model(Survey(state="none")) == ""


def test_unrelated_warm_up_failure_keeps_the_warm_cache(box: Box, progress: Progress) -> None:
    run_prewarm(box, progress)
    key = key_of(box, box.select())
    with pytest.raises(OpsError, match="ended with rc 3"):
        run_prewarm(box, progress, "drafter.num_layers=3", "test.ends=3")
    assert cache.inspect(box.layout, key).warm
    assert lines_of(progress).count("starting the warm-up") == 3  # no rebuild, which could not help


def test_failed_rebuild_restores_the_old_cache(box: Box, progress: Progress) -> None:
    run_prewarm(box, progress)
    key = key_of(box, box.select())
    with pytest.raises(OpsError, match="ended with rc 6"):
        run_prewarm(box, progress, "drafter.num_layers=3", "test.ends=6")
    assert cache.inspect(box.layout, key).warm
    assert [path.name for path in box.layout.caches.iterdir() if path.is_dir()] == [key.cache_id]


def test_full_disk_is_reported_and_the_warm_cache_is_kept(box: Box, progress: Progress) -> None:
    run_prewarm(box, progress)
    with pytest.raises(OpsError, match=r"disk-full: no space left on .*caches"):
        run_prewarm(box, progress, "drafter.num_layers=3", "test.ends=6", "test.says=No space left on device")
    assert cache.inspect(box.layout, key_of(box, box.select())).warm
    assert lines_of(progress).count("starting the warm-up") == 3


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give files away")
def test_cache_of_another_user_is_rejected_with_a_remedy(box: Box, progress: Progress) -> None:
    run_prewarm(box, progress)
    key = key_of(box, box.select())
    os.chown(box.layout.cache(key.cache_id) / "inductor" / "l2-s1", 65534, 65534)
    assert cache.inspect(box.layout, key).state == "foreign"
    with pytest.raises(OpsError, match="l2-s1 belongs to uid 65534, and this is uid 0") as rejected:
        run_prewarm(box, progress)
    assert "chown -R 0" in rejected.value.remedy
    with pytest.raises(OpsError, match="belongs to uid 65534"):
        run_prewarm(box, progress, wipe=True)


@pytest.mark.parametrize(
    "part",
    [
        {"files": {"inductor/l2-s1": 5}},
        {"files": {"../../env.json": [2, "0" * 64]}},
        {"files": {"/etc/passwd": [2, "0" * 64]}},
        {"files": []},
        {"shapes": []},
        {"shapes": {"a": None}},
        {"env_id": None},
    ],
    ids=str,
)
def test_cache_with_a_malformed_record_is_partial(
    box: Box, progress: Progress, part: dict[str, object]
) -> None:
    run_prewarm(box, progress)
    key = key_of(box, box.select())
    file = box.layout.cache(key.cache_id) / "cache.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **part}))
    assert cache.inspect(box.layout, key).state == "partial"
    run_prewarm(box, progress)
    assert cache.inspect(box.layout, key).warm


def test_files_rebuilt_without_a_counted_miss_are_checked_by_a_second_process(box: Box, progress: Progress) -> None:
    run_prewarm(box, progress)
    (box.layout.cache(key_of(box, box.select()).cache_id) / "inductor" / "l2-s1").unlink()
    run_prewarm(box, progress, "test.uncounted=yes")
    assert lines_of(progress).count("check: starting the warm-up") == 2
    assert "(0 misses, 1 files)" in lines_of(progress)


def test_cache_moved_to_another_path_is_checked_again(box: Box, progress: Progress) -> None:
    run_prewarm(box, progress)
    key = key_of(box, box.select())
    file = box.layout.cache(key.cache_id) / "cache.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "folder": "/elsewhere/caches/a"}))
    state = cache.inspect(box.layout, key)
    assert state.state == "partial"
    assert "checked in /elsewhere/caches/a" in state.reason
    run_prewarm(box, progress)
    assert cache.inspect(box.layout, key).warm


def test_cold_time_survives_a_prewarm_killed_before_the_check(
    box: Box, progress: Progress, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = prewarm.warm_up

    def killed(*arguments: object, name: str) -> dict[str, object]:
        if name == "check":
            raise KeyboardInterrupt
        return real(*arguments, name=name)  # type: ignore[arg-type]

    monkeypatch.setattr(prewarm, "warm_up", killed)
    with pytest.raises(KeyboardInterrupt):
        run_prewarm(box, progress)
    monkeypatch.setattr(prewarm, "warm_up", real)
    assert cache.inspect(box.layout, key_of(box, box.select())).state == "partial"
    check = run_prewarm(box, progress)["cache_check"]
    assert check["cold_seconds"] > check["warm_seconds"]  # type: ignore[index]


def test_cold_time_of_added_shapes_is_recorded(box: Box, progress: Progress) -> None:
    run_prewarm(box, progress)
    check = run_prewarm(box, progress, "drafter.num_layers=3")["cache_check"]
    assert check["cold_seconds"] > check["warm_seconds"]  # type: ignore[index]


@pytest.mark.parametrize("shapes", [{}, None])
def test_prewarm_after_a_killed_restore_restores_the_old_cache(box: Box, progress: Progress, shapes: object) -> None:
    run_prewarm(box, progress)
    key = key_of(box, box.select())
    folder = box.layout.cache(key.cache_id)
    record = json.loads((folder / "cache.json").read_text())
    os.rename(folder, folder.with_name(folder.name + ".before"))
    if shapes is not None:
        files.write_json(folder / "cache.json", {**record, "shapes": shapes})
    assert run_prewarm(box, progress)["changed"] is False
    assert cache.inspect(box.layout, key).warm


def test_restore_keeps_files_that_the_archive_lacks(box: Box, progress: Progress) -> None:
    run_prewarm(box, progress)
    key = key_of(box, box.select())
    archive = Path(str(cache_archive.pack(box.layout, key)["path"]))
    run_prewarm(box, progress, "drafter.num_layers=3")
    restore(box, progress, archive, "drafter.num_layers=4")
    assert (box.layout.cache(key.cache_id) / "inductor" / "l3-s0").is_file()
    assert run_prewarm(box, progress, "drafter.num_layers=3")["cache_check"]["misses"] == 0  # type: ignore[index]


def test_optional_restore_of_a_damaged_archive_compiles_instead(box: Box, progress: Progress) -> None:
    run_prewarm(box, progress)
    archive = Path(str(cache_archive.pack(box.layout, key_of(box, box.select()))["path"]))
    archive.write_bytes(b"")
    restore(box, progress, archive, "drafter.num_layers=3", required=False)
    assert cache.inspect(box.layout, key_of(box, box.select("drafter.num_layers=3"))).warm
    assert "Continuing without it" in lines_of(progress)


@pytest.mark.parametrize("data", [b"", b"garbage" * 100], ids=["empty", "garbage"])
def test_invalid_archive_is_rejected_and_the_old_cache_is_kept(box: Box, progress: Progress, data: bytes) -> None:
    run_prewarm(box, progress)
    key = key_of(box, box.select())
    archive = Path(str(cache_archive.pack(box.layout, key)["path"]))
    archive.write_bytes(data)
    metadata = json.loads(cache_archive.metadata_path(archive).read_text())
    files.write_json(cache_archive.metadata_path(archive), {**metadata, "sha256": files.file_sha256(archive)})
    with pytest.raises(OpsError, match="fetch it again"):
        restore(box, progress, archive, "drafter.num_layers=3")
    assert cache.inspect(box.layout, key).warm
    assert [path.name for path in box.layout.caches.iterdir() if path.is_dir()] == [key.cache_id]


@pytest.mark.parametrize("harm", ["archive", "metadata", "cache"])
def test_archive_that_differs_from_the_cache_is_not_current(box: Box, progress: Progress, harm: str) -> None:
    run_prewarm(box, progress)
    key = key_of(box, box.select())
    archive = Path(str(cache_archive.pack(box.layout, key)["path"]))
    assert cache_archive.is_current(box.layout, key)
    if harm == "archive":
        archive.write_bytes(archive.read_bytes()[:-1])
    elif harm == "metadata":
        cache_archive.metadata_path(archive).write_text("[]")
    else:
        (box.layout.cache(key.cache_id) / "inductor" / "more").write_text("another file")
        (box.layout.cache(key.cache_id) / "cache.json").unlink()
        run_prewarm(box, progress)
    assert not cache_archive.is_current(box.layout, key)


def test_jobs_with_different_options_have_different_names(box: Box) -> None:
    selection = box.select()
    key = key_of(box, selection)
    cases: list[dict[str, object]] = [{}, {"wipe": True}, {"archive": True}, {"restore": "/a"}]
    arguments = [prewarm_job.arguments(box.layout, selection, key, **options) for options in cases]  # type: ignore[arg-type]
    assert len({prewarm_job.name(key, each) for each in arguments}) == len(cases)


def test_next_prewarm_terminates_processes_of_a_killed_one(box: Box, progress: Progress) -> None:
    selection = box.select("test.compile=60")
    key = key_of(box, selection)
    arguments = prewarm_job.arguments(box.layout, selection, key)
    jobs.start_or_attach(box.layout, "prewarm-other", prewarm_job.ENTRY, arguments)
    name = prewarm_job.name(key, arguments)
    jobs.stop_job(box.layout, "prewarm-other")
    jobs.start_or_attach(box.layout, name, prewarm_job.ENTRY, arguments)
    mark = jobs.job_mark(box.layout, name)
    until(lambda: "compiling 1/3 drafter[0] cpu S=64" in str(jobs.poll(box.layout, name).progress.get("line")))
    runner = jobs.recorded_process(box.layout.job(name))
    assert runner is not None
    processes.send_signal([runner], signal.SIGKILL)
    until(lambda: jobs.state_of(box.layout.job(name)) == "dead")
    assert processes.find_marked(mark, mark=jobs.JOB_MARK)
    run_prewarm(box, progress)
    assert not processes.find_marked(mark, mark=jobs.JOB_MARK)


def test_prune_keeps_a_locked_cache_and_the_backup_of_a_wipe(box: Box, progress: Progress) -> None:
    run_prewarm(box, progress)
    key = key_of(box, box.select())
    folder = box.layout.cache(key.cache_id)
    os.rename(folder, folder.with_name(folder.name + ".before"))
    with prewarm.cache_lock(box.layout, key.cache_id, progress):
        assert prune.plan(box.layout, keep_runs=1).remove == ()
    assert [path for path, _ in prune.plan(box.layout, keep_runs=1).remove] == []
    assert run_prewarm(box, progress)["changed"] is False


@pytest.mark.parametrize(
    "name",
    [
        "TORCHINDUCTOR_CACHE_DIR",
        "TRITON_CACHE_DIR",
        "TMPDIR",
        "TORCHINDUCTOR_FORCE_DISABLE_CACHES",
        "PYTHONPATH",
        "CUDA_VISIBLE_DEVICES",
    ],
)
def test_environment_variables_cannot_move_or_disable_the_cache(name: str) -> None:
    with pytest.raises(OpsError, match=f"training_run_environment has {name}, which is reserved"):
        trainer_command.check_environment({name: "/tmp/elsewhere"})
