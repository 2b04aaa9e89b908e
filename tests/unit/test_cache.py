"""The compile cache: warm only after a second process said so, whole, and never lost by a wipe or by damage."""

from __future__ import annotations

import json
import os
import platform
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from boxes import Box, until
from dflash_ops import cache, cache_archive, cache_job, files, gpus, jobs, trainer_command
from dflash_ops.cache import Place
from dflash_ops.errors import OpsError
from dflash_ops.gpus import Gpu, Survey
from dflash_ops.jobs import Progress
from dflash_ops.trainer_command import Selection


@pytest.fixture
def box(tmp_path: Path) -> Box:
    return Box(tmp_path / "root with space")


@pytest.fixture
def progress(tmp_path: Path) -> Progress:
    (tmp_path / "job").mkdir()
    return Progress(tmp_path / "job")


def place(box: Box, selection: Selection) -> Place:
    return cache.place(box.layout, selection, trainer_command.resolved(box.layout, selection), Survey(state="none"))


def make(box: Box, progress: Progress, *overrides: str, wipe: bool = False) -> dict[str, object]:
    selection = box.select(*overrides)
    return cache.prewarm(box.layout, selection, place(box, selection), progress, wipe=wipe)


def said(progress: Progress) -> str:
    return (progress.folder / "lines").read_text()


def test_cold_then_proved_then_nothing_to_do(box: Box, progress: Progress) -> None:
    where = place(box, box.select())
    assert cache.look(box.layout, where).state == "cold"
    made = make(box, progress)
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
        cache.prewarm(box.layout, selection, where, progress, wipe=True)
    assert files.read_json(folder / "cache.json") == before
    assert cache.look(box.layout, where).warm
    (folder / "inductor" / "stray").write_text("old")
    assert make(box, progress, wipe=True)["changed"] is True
    assert not (folder / "inductor" / "stray").exists()
    assert not list(box.layout.caches.glob("*.before-wipe"))


def test_killed_wipe_gives_the_old_cache_back(box: Box, progress: Progress) -> None:
    make(box, progress)
    where = place(box, box.select())
    folder = box.layout.cache(where.cache_id)
    os.rename(folder, folder.with_name(folder.name + ".before-wipe"))
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
        jobs.start_or_attach(box.layout, name, "cache_job:job", cache_job.arguments(box.layout, selection, where))

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
    cache_archive.unpack(box.layout, archive, where)
    assert cache.look(box.layout, where).state == "partial"
    made = make(box, progress)
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
        cache_archive.unpack(box.layout, archive, where)
    assert cache.look(box.layout, where).warm


def test_archive_of_other_hardware_is_refused(box: Box, progress: Progress) -> None:
    make(box, progress)
    where = place(box, box.select())
    archive = Path(str(cache_archive.pack(box.layout, where)["path"]))
    note = json.loads(cache_archive.note_of(archive).read_text())
    cache_archive.note_of(archive).write_text(json.dumps({**note, "hardware": "NVIDIA H100"}))
    with pytest.raises(OpsError, match="was made for hardware 'NVIDIA H100'"):
        cache_archive.unpack(box.layout, archive, where)


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
