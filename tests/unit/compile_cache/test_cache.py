"""The compile cache: warm only after a second process said so, whole, and never lost by a wipe or by damage."""

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
from dflash_ops.compile_cache.cache import Place
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


def place(box: Box, selection: Selection) -> Place:
    return cache.place(box.layout, selection, resolved_config.resolve(box.layout, selection), Survey(state="none"))


def make(box: Box, progress: Progress, *overrides: str, wipe: bool = False) -> dict[str, object]:
    selection = box.select(*overrides)
    return prewarm.prewarm(box.layout, selection, place(box, selection), progress, wipe=wipe)


def restore(box: Box, progress: Progress, archive: Path, *overrides: str, required: bool = True) -> dict[str, object]:
    selection = box.select(*overrides)
    first = Archive(archive, required=required)
    return prewarm.prewarm(box.layout, selection, place(box, selection), progress, archive=first)


def said(progress: Progress) -> str:
    return (progress.folder / "lines").read_text()


def test_cold_then_proved_then_nothing_to_do(box: Box, progress: Progress) -> None:
    where = place(box, box.select())
    assert cache.look(box.layout, where).state == "cold"
    made = make(box, progress)
    assert "is cold: nothing is compiled yet" in said(progress)
    now = cache.look(box.layout, where)
    assert now.warm
    assert now.proof["misses"] == 0
    assert now.proof["cold_seconds"] > now.proof["warm_seconds"]
    assert now.proof["covered"] == [{"device": "cpu", "worker": "drafter[0]", "bucket": 64}]
    assert made["changed"] is True
    assert make(box, progress)["changed"] is False


@pytest.mark.parametrize("second", ["fails", "misses"])
def test_case_49_second_process_is_the_judge(box: Box, progress: Progress, second: str) -> None:
    with pytest.raises(OpsError):
        make(box, progress, f"test.second={second}")
    selection = box.select(f"test.second={second}")
    where = place(box, selection)
    assert not cache.look(box.layout, where).warm
    assert not (box.layout.cache(where.cache_id) / "cache.json").exists()


@pytest.mark.parametrize(
    "harm",
    [
        lambda p: p.write_bytes(b""),
        lambda p: p.write_bytes(os.urandom(p.stat().st_size)),
        lambda p: p.unlink(),
        lambda p: p.write_text(p.read_text()[:7]),
    ],
)
def test_case_46_damaged_files_are_found_named_and_made_again(
    box: Box, progress: Progress, harm: Callable[[Path], object]
) -> None:
    make(box, progress)
    where = place(box, box.select())
    victim = box.layout.cache(where.cache_id) / "inductor" / "l2-s1"
    harm(victim)
    now = cache.look(box.layout, where)
    assert (now.state, now.damaged) == ("damaged", ("inductor/l2-s1",))
    make(box, progress)
    assert cache.look(box.layout, where).warm
    assert "dropped inductor/l2-s1: it is damaged" in said(progress)


def test_a_kernel_choice_measured_again_is_no_damage_and_a_broken_one_is(box: Box, progress: Progress) -> None:
    where = place(box, box.select())
    choice = box.layout.cache(where.cache_id) / "inductor" / "f3" / "036e.best_config"
    choice.parent.mkdir(parents=True)
    choice.write_text('{"XBLOCK": 1, "configs_hash": "aa", "time_taken_ms": 29}')
    make(box, progress)
    choice.write_text('{"XBLOCK": 2, "configs_hash": "aa", "time_taken_ms": 131}')
    assert cache.look(box.layout, where).warm
    for broken in ('{"XBLOCK": 2, "config', '["configs_hash"]', "[" * 100_000):
        choice.write_text(broken)
        assert cache.look(box.layout, where).damaged == ("inductor/f3/036e.best_config",)


def test_case_46_cache_that_crashes_its_reader_is_set_aside_once(box: Box, progress: Progress) -> None:
    make(box, progress)
    where = place(box, box.select())
    folder = box.layout.cache(where.cache_id)
    (folder / "cache.json").unlink()
    (folder / "inductor" / "l2-s0").write_text("garbage")
    make(box, progress, "test.garbage=crashes")
    assert len(list(box.layout.caches.glob(f"{where.cache_id}.damaged-*"))) == 1
    assert "made anew once" in said(progress)


def test_case_46_damaged_record_is_a_cache_without_proof(box: Box, progress: Progress) -> None:
    make(box, progress)
    where = place(box, box.select())
    (box.layout.cache(where.cache_id) / "cache.json").write_text("{")
    assert cache.look(box.layout, where).state == "partial"
    make(box, progress)
    assert cache.look(box.layout, where).warm


def test_changed_shapes_prewarm_again_and_the_old_ones_stay_covered(box: Box, progress: Progress) -> None:
    make(box, progress)
    old, new = place(box, box.select()), place(box, box.select("drafter.num_layers=3"))
    assert old.cache_id == new.cache_id
    assert cache.look(box.layout, new).state == "partial"
    make(box, progress, "drafter.num_layers=3")
    assert f"cache {new.cache_id} is partial: the configuration or the code changed" in said(progress)
    assert cache.look(box.layout, old).warm
    assert cache.look(box.layout, new).warm


def test_learning_rate_is_no_shape(box: Box) -> None:
    assert place(box, box.select()).shape_id == place(box, box.select("optimizer.lr=1")).shape_id


def test_changed_code_needs_a_new_proof(box: Box, progress: Progress) -> None:
    make(box, progress)
    box.add_release("r2")
    (box.layout.release("r2") / "trainer/dflash_trainer/__init__.py").write_text("# changed\n")
    selection = Selection(env_id="e1", release_id="r2", config="demo.toml")
    assert cache.look(box.layout, place(box, selection)).state == "partial"


def test_environment_and_gpu_model_name_the_cache(box: Box) -> None:
    def of(model: str, env_id: str = "e1") -> str:
        found = Survey(state="ok", gpus=(Gpu(0, "u", model, "570", 1, 1, 0),))
        selection = Selection(env_id=env_id, release_id="r1", config="demo.toml")
        return cache.place(box.layout, selection, {"config": {}, "needs": {"gpus": 1}}, found).cache_id

    box.add_environment("e2")
    assert len({of("NVIDIA H200"), of("NVIDIA H100"), of("NVIDIA H200", "e2")}) == 3
    assert of("NVIDIA H200") == of("NVIDIA H200")


def test_wipe_keeps_the_old_cache_until_the_new_one_is_proved(box: Box, progress: Progress) -> None:
    make(box, progress)
    where = place(box, box.select())
    folder = box.layout.cache(where.cache_id)
    before = files.read_json(folder / "cache.json")
    with pytest.raises(OpsError):
        selection = box.select("test.second=misses")
        prewarm.prewarm(box.layout, selection, where, progress, wipe=True)
    assert files.read_json(folder / "cache.json") == before
    assert cache.look(box.layout, where).warm
    (folder / "inductor" / "stray").write_text("old")
    assert make(box, progress, wipe=True)["changed"] is True
    assert "A wipe is rarely needed" in said(progress)
    assert not (folder / "inductor" / "stray").exists()
    assert not list(box.layout.caches.glob("*.before"))


def test_killed_wipe_gives_the_old_cache_back(box: Box, progress: Progress) -> None:
    make(box, progress)
    where = place(box, box.select())
    folder = box.layout.cache(where.cache_id)
    os.rename(folder, folder.with_name(folder.name + ".before"))
    (folder / "inductor").mkdir(parents=True)
    (folder / "inductor" / "half").write_text("x")
    assert make(box, progress)["changed"] is False
    assert not (folder / "inductor" / "half").exists()


@pytest.mark.skipif(not shutil.which("tmux"), reason="tmux is not installed")
def test_wipe_and_prewarm_are_refused_while_a_run_lives(box: Box, progress: Progress) -> None:
    make(box, progress)
    run = box.launch()
    try:
        warm = cache.look(box.layout, place(box, box.select()))
        cold = cache.look(box.layout, place(box, box.select("drafter.num_layers=7")))
        cache.refuse_beside_a_run(box.layout, warm, wipe=False)
        with pytest.raises(OpsError, match=f"compile_cache_wipe is true while run {run.run_id} lives") as refused:
            cache.refuse_beside_a_run(box.layout, warm, wipe=True)
        assert "rarely needed" in refused.value.remedy
        with pytest.raises(OpsError, match="lives on the same devices"):
            cache.refuse_beside_a_run(box.layout, cold, wipe=False)
    finally:
        box.end()


def test_two_prewarms_at_once_one_works_the_other_finds_it_warm(box: Box) -> None:
    selection = box.select("test.compile=0.3")
    where = place(box, selection)

    def start(name: str) -> None:
        jobs.start_or_attach(box.layout, name, prewarm_job.ENTRY, prewarm_job.arguments(box.layout, selection, where))

    start("one")
    until(lambda: any("starting" in line for line in jobs.poll(box.layout, "one").lines))
    start("two")
    until(lambda: all(jobs.poll(box.layout, name).state == "done" for name in ("one", "two")))
    changed = [jobs.poll(box.layout, name).exit["result"]["changed"] for name in ("one", "two")]
    assert changed == [True, False]
    assert "waiting for it" in "".join(jobs.poll(box.layout, "two").lines)


def test_archive_comes_back_on_a_rebuilt_box_and_is_proved_again(box: Box, progress: Progress, tmp_path: Path) -> None:
    make(box, progress)
    where = place(box, box.select())
    note = cache_archive.pack(box.layout, where)
    assert cache_archive.current(box.layout, where)
    archive = Path(str(note["path"]))
    shutil.rmtree(box.layout.cache(where.cache_id))
    made = restore(box, progress, archive)
    assert cache.look(box.layout, where).warm
    assert made["proof"]["cold_seconds"] is None  # type: ignore[index]
    assert said(progress).count("starting the warm-up") == 3  # cold, proof, and one after the restore


def test_damaged_archive_is_refused_and_changes_nothing(box: Box, progress: Progress) -> None:
    make(box, progress)
    where = place(box, box.select())
    archive = Path(str(cache_archive.pack(box.layout, where)["path"]))
    data = bytearray(archive.read_bytes())
    data[len(data) // 2] ^= 1
    archive.write_bytes(data)
    with pytest.raises(OpsError, match="is damaged: its sha256"):
        restore(box, progress, archive, "drafter.num_layers=3")
    assert cache.look(box.layout, where).warm


def test_archive_of_other_hardware_is_refused(box: Box, progress: Progress) -> None:
    make(box, progress)
    where = place(box, box.select())
    archive = Path(str(cache_archive.pack(box.layout, where)["path"]))
    note = json.loads(cache_archive.note_of(archive).read_text())
    cache_archive.note_of(archive).write_text(json.dumps({**note, "hardware": "NVIDIA H100"}))
    with pytest.raises(OpsError, match="was made for hardware 'NVIDIA H100'"):
        restore(box, progress, archive, "drafter.num_layers=3")


def test_unproved_cache_is_not_packed(box: Box) -> None:
    with pytest.raises(OpsError, match="only a proved one is packed"):
        cache_archive.pack(box.layout, place(box, box.select()))


def test_case_44_cache_and_trainer_know_no_tmp(box: Box) -> None:
    where = box.layout.cache("c1")
    values = trainer_command.environment(box.layout, box.select(), cache=where)
    for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "FLA_CACHE_DIR"):
        assert values[name].startswith(str(box.layout.root))


def test_cpu_model_names_instruction_sets() -> None:
    told = cache.cpu_model()
    assert platform.machine() in told
    assert "unknown" not in told
    if platform.machine() == "x86_64":
        assert ("avx2" in told) == (" avx2 " in Path("/proc/cpuinfo").read_text())
    assert gpus.model(Survey(state="none")) == ""


def test_warm_up_that_fails_for_another_reason_leaves_the_proved_cache(box: Box, progress: Progress) -> None:
    make(box, progress)
    where = place(box, box.select())
    with pytest.raises(OpsError, match="ended with rc 3"):
        make(box, progress, "drafter.num_layers=3", "test.ends=3")
    assert cache.look(box.layout, where).warm
    assert said(progress).count("starting the warm-up") == 3  # an empty cache would not help either


def test_cache_that_was_made_anew_in_vain_comes_back(box: Box, progress: Progress) -> None:
    make(box, progress)
    where = place(box, box.select())
    with pytest.raises(OpsError, match="ended with rc 6"):
        make(box, progress, "drafter.num_layers=3", "test.ends=6")
    assert cache.look(box.layout, where).warm
    assert [path.name for path in box.layout.caches.iterdir() if path.is_dir()] == [where.cache_id]


def test_full_disk_is_told_and_the_proved_cache_stays(box: Box, progress: Progress) -> None:
    make(box, progress)
    with pytest.raises(OpsError, match=r"disk-full: no space left on .*caches"):
        make(box, progress, "drafter.num_layers=3", "test.ends=6", "test.says=No space left on device")
    assert cache.look(box.layout, place(box, box.select())).warm
    assert said(progress).count("starting the warm-up") == 3


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give files away")
def test_cache_of_another_user_is_refused_and_says_what_to_do(box: Box, progress: Progress) -> None:
    make(box, progress)
    where = place(box, box.select())
    os.chown(box.layout.cache(where.cache_id) / "inductor" / "l2-s1", 65534, 65534)
    assert cache.look(box.layout, where).state == "foreign"
    with pytest.raises(OpsError, match="l2-s1 belongs to uid 65534, and this is uid 0") as refused:
        make(box, progress)
    assert "chown -R 0" in refused.value.remedy
    with pytest.raises(OpsError, match="belongs to uid 65534"):
        make(box, progress, wipe=True)


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
def test_case_46_nonsense_in_the_record_is_a_cache_without_proof(
    box: Box, progress: Progress, part: dict[str, object]
) -> None:
    make(box, progress)
    where = place(box, box.select())
    file = box.layout.cache(where.cache_id) / "cache.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **part}))
    assert cache.look(box.layout, where).state == "partial"
    make(box, progress)
    assert cache.look(box.layout, where).warm


def test_what_is_made_again_without_a_counted_miss_is_proved_by_a_second_process(box: Box, progress: Progress) -> None:
    make(box, progress)
    (box.layout.cache(place(box, box.select()).cache_id) / "inductor" / "l2-s1").unlink()
    make(box, progress, "test.uncounted=yes")
    assert said(progress).count("proof: starting the warm-up") == 2
    assert "(0 misses, 1 files)" in said(progress)


def test_cache_that_lies_elsewhere_than_it_was_proved_is_proved_again(box: Box, progress: Progress) -> None:
    make(box, progress)
    where = place(box, box.select())
    file = box.layout.cache(where.cache_id) / "cache.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "folder": "/elsewhere/caches/a"}))
    now = cache.look(box.layout, where)
    assert now.state == "partial"
    assert "proved in /elsewhere/caches/a" in now.reason
    make(box, progress)
    assert cache.look(box.layout, where).warm


def test_both_times_are_kept_when_the_prewarm_dies_before_the_proof(
    box: Box, progress: Progress, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = prewarm.warm_up

    def killed(*arguments: object, name: str) -> dict[str, object]:
        if name == "proof":
            raise KeyboardInterrupt
        return real(*arguments, name=name)  # type: ignore[arg-type]

    monkeypatch.setattr(prewarm, "warm_up", killed)
    with pytest.raises(KeyboardInterrupt):
        make(box, progress)
    monkeypatch.setattr(prewarm, "warm_up", real)
    assert cache.look(box.layout, place(box, box.select())).state == "partial"
    proof = make(box, progress)["proof"]
    assert proof["cold_seconds"] > proof["warm_seconds"]  # type: ignore[index]


def test_time_of_added_shapes_is_told(box: Box, progress: Progress) -> None:
    make(box, progress)
    proof = make(box, progress, "drafter.num_layers=3")["proof"]
    assert proof["cold_seconds"] > proof["warm_seconds"]  # type: ignore[index]


@pytest.mark.parametrize("shapes", [{}, None])
def test_killed_restore_gives_the_old_cache_back(box: Box, progress: Progress, shapes: object) -> None:
    make(box, progress)
    where = place(box, box.select())
    folder = box.layout.cache(where.cache_id)
    record = json.loads((folder / "cache.json").read_text())
    os.rename(folder, folder.with_name(folder.name + ".before"))
    if shapes is not None:
        files.write_json(folder / "cache.json", {**record, "shapes": shapes})
    assert make(box, progress)["changed"] is False
    assert cache.look(box.layout, where).warm


def test_restore_keeps_what_the_archive_lacks(box: Box, progress: Progress) -> None:
    make(box, progress)
    where = place(box, box.select())
    archive = Path(str(cache_archive.pack(box.layout, where)["path"]))
    make(box, progress, "drafter.num_layers=3")
    restore(box, progress, archive, "drafter.num_layers=4")
    assert (box.layout.cache(where.cache_id) / "inductor" / "l3-s0").is_file()
    assert make(box, progress, "drafter.num_layers=3")["proof"]["misses"] == 0  # type: ignore[index]


def test_rollback_goes_on_without_a_damaged_archive(box: Box, progress: Progress) -> None:
    make(box, progress)
    archive = Path(str(cache_archive.pack(box.layout, place(box, box.select()))["path"]))
    archive.write_bytes(b"")
    restore(box, progress, archive, "drafter.num_layers=3", required=False)
    assert cache.look(box.layout, place(box, box.select("drafter.num_layers=3"))).warm
    assert "Going on without it" in said(progress)


@pytest.mark.parametrize("data", [b"", b"garbage" * 100], ids=["empty", "garbage"])
def test_archive_that_is_none_is_refused_and_the_old_cache_stays(box: Box, progress: Progress, data: bytes) -> None:
    make(box, progress)
    where = place(box, box.select())
    archive = Path(str(cache_archive.pack(box.layout, where)["path"]))
    archive.write_bytes(data)
    note = json.loads(cache_archive.note_of(archive).read_text())
    files.write_json(cache_archive.note_of(archive), {**note, "sha256": files.file_sha256(archive)})
    with pytest.raises(OpsError, match="fetch it again"):
        restore(box, progress, archive, "drafter.num_layers=3")
    assert cache.look(box.layout, where).warm
    assert [path.name for path in box.layout.caches.iterdir() if path.is_dir()] == [where.cache_id]


@pytest.mark.parametrize("harm", ["archive", "note", "cache"])
def test_archive_that_is_not_what_the_cache_holds_is_packed_again(box: Box, progress: Progress, harm: str) -> None:
    make(box, progress)
    where = place(box, box.select())
    archive = Path(str(cache_archive.pack(box.layout, where)["path"]))
    assert cache_archive.current(box.layout, where)
    if harm == "archive":
        archive.write_bytes(archive.read_bytes()[:-1])
    elif harm == "note":
        cache_archive.note_of(archive).write_text("[]")
    else:
        (box.layout.cache(where.cache_id) / "inductor" / "more").write_text("of another make")
        (box.layout.cache(where.cache_id) / "cache.json").unlink()
        make(box, progress)
    assert not cache_archive.current(box.layout, where)


def test_nobody_attaches_to_less_than_was_asked(box: Box) -> None:
    selection = box.select()
    where = place(box, selection)
    asked: list[dict[str, object]] = [{}, {"wipe": True}, {"archive": True}, {"restore": "/a"}]
    told = [prewarm_job.arguments(box.layout, selection, where, **words) for words in asked]  # type: ignore[arg-type]
    assert len({prewarm_job.name(where, one) for one in told}) == len(asked)


def test_what_a_killed_prewarm_left_running_is_ended_by_the_next_one(box: Box, progress: Progress) -> None:
    selection = box.select("test.compile=60")
    where = place(box, selection)
    told = prewarm_job.arguments(box.layout, selection, where)
    jobs.start_or_attach(box.layout, "prewarm-other", prewarm_job.ENTRY, told)
    name = prewarm_job.name(where, told)
    jobs.stop_job(box.layout, "prewarm-other")
    jobs.start_or_attach(box.layout, name, prewarm_job.ENTRY, told)
    mark = jobs.mark_of(box.layout, name)
    until(lambda: "compiling 1/3 drafter[0] cpu S=64" in str(jobs.poll(box.layout, name).progress.get("line")))
    runner = jobs.recorded_process(box.layout.job(name))
    assert runner is not None
    processes.send([runner], signal.SIGKILL)
    until(lambda: jobs.state_of(box.layout.job(name)) == "dead")
    assert processes.marked(mark, mark=jobs.JOB_MARK)
    make(box, progress)
    assert not processes.marked(mark, mark=jobs.JOB_MARK)


def test_prune_keeps_a_cache_that_somebody_makes_and_one_that_waits_for_a_wipe(box: Box, progress: Progress) -> None:
    make(box, progress)
    where = place(box, box.select())
    folder = box.layout.cache(where.cache_id)
    os.rename(folder, folder.with_name(folder.name + ".before"))
    with prewarm.holding(box.layout, where.cache_id, progress):
        assert prune.plan(box.layout, keep_runs=1).remove == ()
    assert [path for path, _ in prune.plan(box.layout, keep_runs=1).remove] == []
    assert make(box, progress)["changed"] is False


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
def test_nobody_moves_the_cache_out_of_the_root_or_switches_it_off(name: str) -> None:
    with pytest.raises(OpsError, match=f"training_run_environment has {name}, which is reserved"):
        trainer_command.check_environment({name: "/tmp/elsewhere"})
