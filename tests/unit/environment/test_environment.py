"""Environments are built for real here, by uv, from tiny wheels: proved, broken, killed and healed."""

from __future__ import annotations

import json
import marshal
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import wheels
from dflash_ops.core import files, jobs, processes
from dflash_ops.core.errors import OpsError
from dflash_ops.core.jobs import Progress
from dflash_ops.core.paths import Layout
from dflash_ops.environment import build as environment_build
from dflash_ops.environment import inspection, uv_binary, uv_install

CPU = "2.13.0+cpu"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of wheels: a torch for CPU, transformers, and a package with a console script."""
    place = tmp_path / "wheels"
    wheels.make_wheel(place, "torch", CPU, wheels.torch_files(CPU, cuda=None))
    wheels.make_wheel(place, "transformers", "5.8.1", wheels.TRANSFORMERS)
    wheels.make_wheel(
        place, "demo-tool", "1.0", {"demo_tool.py": "import sys\ndef main():\n    print(sys.prefix)\n"}, script="demo"
    )
    return place


@pytest.fixture
def want(folder: Path, layout: Layout) -> dict[str, Any]:
    """Arguments of a build that needs no network."""
    return arguments(
        layout, wheels.make_lock(sorted(folder.glob("*.whl")), indexes={"torch": "http://127.0.0.1:9/simple"}), folder
    )


def arguments(layout: Layout, lock: str, *folders: Path, **more: Any) -> dict[str, Any]:
    """Return module arguments, with the pinned uv in its place on the box."""
    program = uv_binary.place(layout, uv_binary.pinned(wheels.UV_LOCK.read_text()))
    if not program.exists():
        program.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(Path(sys.executable).parent / "uv", program)
    return {
        "root": str(layout.root),
        "workspace": "",
        "profile": "cpu",
        "lock": lock,
        "lock_name": "test.lock",
        "uv_lock": wheels.UV_LOCK.read_text(),
        "python": "",
        "index_urls": {"default": "none"},
        "heal": False,
        "find_links": [str(one) for one in folders],
        "cache_dir": "",
        "packages": False,
        "self_test_gpus": False,
        **more,
    }


def build(layout: Layout, want: dict[str, Any]) -> dict[str, Any]:
    """Build in this process, as the job's runner does."""
    layout.jobs.mkdir(parents=True, exist_ok=True)
    return environment_build.build(want, Progress(layout.jobs))


def inspect(layout: Layout, want: dict[str, Any]) -> inspection.Status:
    return inspection.inspect(layout, inspection.Spec.of(want, layout))


def site_of(layout: Layout, env_id: str) -> Path:
    return environment_build.site_packages(layout.env(env_id))


def test_a_build_is_complete_and_recorded(layout: Layout, want: dict[str, Any], folder: Path) -> None:
    assert inspect(layout, want).state == "missing"
    built = build(layout, want)
    record = files.read_json(layout.env(built["env_id"]) / "env.json")
    assert record is not None
    rows = {row["name"]: (row["version"], row["wheel_sha256"]) for row in record["packages"]}
    assert rows["torch"] == (CPU, wheels.sha256(folder / f"torch-{CPU}-py3-none-any.whl"))
    assert rows["demo-tool"][0] == "1.0"
    assert record["proof"]["torch"]["file"].startswith(str(layout.env(built["env_id"])))
    assert "bin/python" in record["files"]
    assert any(name.endswith("torch/__init__.py") for name in record["files"])
    assert not list(layout.env(built["env_id"]).rglob("pip*"))
    assert inspect(layout, want).state == "complete"
    assert inspection.check(layout, built["env_id"], full=True) == []


def test_case_40_scripts_work_in_a_root_with_a_space_and_name_no_old_path(layout: Layout, want: dict[str, Any]) -> None:
    env = layout.env(build(layout, want)["env_id"])
    assert " " in str(env)
    shown = subprocess.run([env / "bin/demo"], capture_output=True, text=True, check=True).stdout
    assert shown.strip() == str(env)
    held = [
        path
        for path in env.rglob("*")
        if path.is_file() and path.suffix != ".pyc" and not path.is_symlink() and b".building-" in path.read_bytes()
    ]
    assert held == []


def test_same_lock_gives_the_same_fingerprint_in_two_places(
    layout: Layout, want: dict[str, Any], tmp_path: Path
) -> None:
    other = Layout.of(tmp_path / "second box")
    second = arguments(other, want["lock"], Path(want["find_links"][0]))
    one, two = build(layout, want), build(other, second)
    assert one["env_id"] == two["env_id"]
    assert one["fingerprint"] == two["fingerprint"]


def test_name_follows_every_byte_of_the_lock(layout: Layout, want: dict[str, Any]) -> None:
    assert inspect(layout, want).env_id != inspect(layout, {**want, "lock": want["lock"] + "# a word\n"}).env_id


# Case 34


def test_case_34_flipped_hash_names_file_and_both_hashes(layout: Layout, want: dict[str, Any], folder: Path) -> None:
    old = build(layout, want)
    right = wheels.sha256(folder / f"torch-{CPU}-py3-none-any.whl")
    wrong = ("0" if right[0] != "0" else "1") + right[1:]
    with pytest.raises(OpsError) as caught:
        build(layout, {**want, "lock": want["lock"].replace(right, wrong)})
    assert "torch" in str(caught.value)
    assert right in str(caught.value)
    assert wrong in str(caught.value)
    assert inspection.check(layout, old["env_id"], full=True) == []
    assert [path.name for path in layout.envs.iterdir() if not path.name.startswith(".")] == [old["env_id"]]


def test_case_34_truncated_wheel_fails_loudly_and_the_retry_works(
    layout: Layout, want: dict[str, Any], folder: Path
) -> None:
    path = folder / "transformers-5.8.1-py3-none-any.whl"
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(OpsError, match="transformers"):
        build(layout, want)
    assert inspect(layout, want).state == "missing"
    path.write_bytes(whole)
    assert build(layout, want)["state"] == "complete"


def test_case_34_network_cut_at_90_percent_is_loud_and_the_retry_works(
    layout: Layout, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uv_install, "NETWORK_PAUSES", ())
    big = wheels.make_wheel(folder, "big", "1.0", {"big.py": f"DATA = {random.Random(1).randbytes(200_000).hex()!r}\n"})
    index = wheels.Index([big])
    try:
        index.cut_at[big.name] = 0.9
        want = arguments(layout, wheels.make_lock([big]), index_urls={"default": index.url})
        with pytest.raises(OpsError, match="big") as caught:
            build(layout, want)
        assert "run it again" in caught.value.remedy
        assert inspect(layout, want).state == "missing"
        index.cut_at.clear()
        assert build(layout, want)["state"] == "complete"
    finally:
        index.close()


def test_case_34_a_network_that_comes_back_needs_no_second_command(
    layout: Layout, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uv_install, "NETWORK_PAUSES", (0.1, 0.1))
    big = wheels.make_wheel(folder, "big", "1.0", {"big.py": f"DATA = {random.Random(1).randbytes(200_000).hex()!r}\n"})
    index = wheels.Index([big])
    try:
        index.cut_at[big.name] = 0.9
        index.cuts_left = 8  # more than uv tries by itself
        built = build(layout, arguments(layout, wheels.make_lock([big]), index_urls={"default": index.url}))
    finally:
        index.close()
    assert built["state"] == "complete"
    assert "the network failed" in capsys.readouterr().out


def test_case_34_damaged_cache_is_cleaned_and_built_again(layout: Layout, want: dict[str, Any]) -> None:
    build(layout, want)
    victims = list((layout.root / "uv-cache").rglob("torch/functional.py"))
    assert victims
    for victim in victims:
        victim.write_text("def einsum():\n    return 2\n")
    second = build(layout, {**want, "lock": want["lock"] + "# another environment\n"})
    text = (site_of(layout, second["env_id"]) / "torch/functional.py").read_text()
    assert text == wheels.torch_files(CPU, cuda=None)["torch/functional.py"]


def test_a_file_that_was_added_to_the_cache_enters_no_environment(layout: Layout, want: dict[str, Any]) -> None:
    build(layout, want)
    for package in list((layout.root / "uv-cache").rglob("torch/functional.py")):
        (package.parent / "evil.py").write_text("")
        (package.parents[1] / "zz.pth").write_text("import sys\n")
    second = build(layout, {**want, "lock": want["lock"] + "# another environment\n"})
    site = site_of(layout, second["env_id"])
    assert (site / "torch/functional.py").exists()
    assert not (site / "torch/evil.py").exists() and not (site / "zz.pth").exists()


@pytest.mark.parametrize("place", ["__pycache__/demo_tool.{tag}.pyc", "planted.pyc"])
def test_bytecode_in_the_cache_enters_no_environment(layout: Layout, want: dict[str, Any], place: str) -> None:
    """Bytecode that python would take for the source's own: of its time and size."""
    first = layout.env(build(layout, want)["env_id"])
    (compiled,) = first.rglob("demo_tool.*.pyc")
    foreign = marshal.dumps(compile("def main():\n    print(666)\n", "demo_tool.py", "exec"))
    for source in list(layout.uv_cache.rglob("demo_tool.py")):
        times = source.stat()
        head = compiled.read_bytes()[:8] + struct.pack("<II", int(times.st_mtime), times.st_size)
        planted = source.parent / place.format(tag=sys.implementation.cache_tag)
        planted.parent.mkdir(exist_ok=True)
        planted.write_bytes(head + foreign)
    second = layout.env(build(layout, {**want, "lock": want["lock"] + "# another environment\n"})["env_id"])
    assert not list(second.rglob("planted.pyc"))
    assert foreign not in b"".join(path.read_bytes() for path in second.rglob("*.pyc"))
    shown = subprocess.run([second / "bin/demo"], capture_output=True, text=True, check=True).stdout
    assert shown.strip() == str(second)


def test_edited_bytecode_is_drift_and_a_heal_compiles_again(layout: Layout, want: dict[str, Any]) -> None:
    env = layout.env(build(layout, want)["env_id"])
    (compiled,) = env.rglob("demo_tool.*.pyc")
    before = compiled.read_bytes()
    foreign = marshal.dumps(compile("def main():\n    print(666)\n", "demo_tool.py", "exec"))
    compiled.write_bytes(before[:16] + foreign)
    assert [(one.kind, env / one.path) for one in inspection.check(layout, env.name)] == [("edited", compiled)]
    build(layout, {**want, "heal": True})
    assert compiled.read_bytes()[16:] == before[16:]
    assert inspection.check(layout, env.name, full=True) == []


def test_an_environment_shares_no_file_with_the_cache(layout: Layout, want: dict[str, Any]) -> None:
    env = layout.env(build(layout, want)["env_id"])
    assert list(layout.uv_cache.rglob("torch/functional.py"))
    assert shared_files(env) == []
    assert [path.name for path in layout.envs.iterdir()] == [env.name]
    assert [path.name for path in layout.jobs.iterdir() if path.is_dir()] == []


def test_a_healed_environment_shares_no_file_with_the_cache_either(layout: Layout, want: dict[str, Any]) -> None:
    env = layout.env(build(layout, want)["env_id"])
    text = wheels.torch_files(CPU, cuda=None)["torch/functional.py"]
    edit_torch(site_of(layout, env.name))
    build(layout, {**want, "heal": True})
    assert shared_files(env) == []
    assert {path.read_text() for path in layout.root.rglob("torch/functional.py")} == {text}


def test_what_a_heal_replaced_goes_when_no_process_uses_it(layout: Layout, want: dict[str, Any]) -> None:
    env = layout.env(build(layout, want)["env_id"])
    code = "import mmap, sys; file = open(sys.argv[1]); held = mmap.mmap(file.fileno(), 0, prot=1); print(); input()"
    used = site_of(layout, env.name) / "torch/functional.py"
    user = subprocess.Popen([sys.executable, "-uc", code, used], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert user.stdout is not None
    user.stdout.readline()
    (env / "planted.py").write_text("")
    build(layout, {**want, "heal": True})
    assert len(list(layout.envs.glob(".replaced-*"))) == 1
    user.communicate(b"\n")
    build(layout, want)
    assert [path.name for path in layout.envs.iterdir()] == [env.name]


def shared_files(env: Path) -> list[Path]:
    """Return the files of an environment that have another name somewhere."""
    return [path for path in env.rglob("*") if path.is_file() and path.lstat().st_nlink > 1]


def test_what_a_broken_first_build_fetched_is_not_fetched_again(
    layout: Layout, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uv_install, "NETWORK_PAUSES", ())
    torch, lost = next(folder.glob("torch-*")), next(folder.glob("demo_tool-*"))
    index = wheels.Index([torch, lost])
    index.cut_at[lost.name] = 0.5
    try:
        lock = wheels.make_lock([torch, lost], indexes={"torch": index.url})
        want = arguments(layout, lock, index_urls={"default": index.url})
        with pytest.raises(OpsError, match="demo-tool"):
            build(layout, want)
        index.cut_at.clear()
        asked = len(index.asked)
        build(layout, want)
        assert not [path for path in index.asked[asked:] if path.startswith("/files/torch-")]
    finally:
        index.close()


def test_a_cache_elsewhere_is_copied_from(layout: Layout, want: dict[str, Any], tmp_path: Path) -> None:
    cache = tmp_path / "cache of all"
    want = {**want, "cache_dir": str(cache)}
    build(layout, want)
    env = layout.env(build(layout, {**want, "lock": want["lock"] + "# another environment\n"})["env_id"])
    assert list(cache.rglob("torch/functional.py"))
    assert shared_files(env) == []
    assert not layout.uv_cache.exists()


# Case 35


def test_case_35_unreachable_index_is_named_before_anything_is_there(
    layout: Layout, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uv_install, "NETWORK_PAUSES", (0.1,))
    torch = next(folder.glob("torch-*"))
    lock = wheels.make_lock([torch], indexes={"torch": "http://127.0.0.1:9/simple"})
    with pytest.raises(OpsError, match=r"127\.0\.0\.1:9") as caught:
        build(layout, arguments(layout, lock))
    assert "python_env_index_urls" in caught.value.remedy
    with pytest.raises(OpsError, match=r"torch==.* has no source"):
        build(layout, arguments(layout, lock, index_urls={"default": "none", "torch": "none"}))
    assert not list(layout.envs.glob("[!.]*"))


def test_case_35_each_package_is_asked_of_its_own_index_only(layout: Layout, tmp_path: Path) -> None:
    right = wheels.make_wheel(tmp_path / "a", "torch", "2.11.0+cu128", wheels.torch_files("2.11.0+cu128", cuda="12.8"))
    wrong = wheels.make_wheel(tmp_path / "b", "torch", "2.11.0", wheels.torch_files("2.11.0+cu130", cuda="13.0"))
    other = wheels.make_wheel(tmp_path / "b", "transformers", "5.8.1", wheels.TRANSFORMERS)
    special, main = wheels.Index([right, other]), wheels.Index([wrong, other])
    try:
        lock = wheels.make_lock([right, other], profile="cu128", indexes={"torch": special.url}, cuda="12.8")
        built = build(layout, arguments(layout, lock, profile="cu128", index_urls={"default": main.url}))
        assert built["torch"]["version"] == "2.11.0+cu128"
        assert not [path for path in main.asked if "/torch" in path]
        assert not [path for path in special.asked if "/transformers" in path]
    finally:
        special.close()
        main.close()


def test_case_35_another_build_under_the_pinned_name_is_refused(layout: Layout, tmp_path: Path) -> None:
    liar = wheels.make_wheel(tmp_path / "w", "torch", "2.11.0+cu128", wheels.torch_files("2.11.0+cu130", cuda="13.0"))
    lock = wheels.make_lock([liar], profile="cu128", indexes={"torch": "http://127.0.0.1:9"}, cuda="12.8")
    with pytest.raises(
        OpsError, match=r"torch is 2\.11\.0\+cu130 for CUDA 13\.0, the lock pins 2\.11\.0\+cu128 for CUDA 12\.8"
    ):
        build(layout, arguments(layout, lock, tmp_path / "w", profile="cu128"))


def test_a_package_that_does_not_import_is_named_and_nothing_is_put_in_place(
    layout: Layout, want: dict[str, Any], folder: Path
) -> None:
    wheels.make_wheel(folder, "needs-driver", "1.0", {"needs_driver.py": "raise OSError('libcuda.so.1 is missing')\n"})
    lock = wheels.make_lock(sorted(folder.glob("*.whl")), indexes={"torch": "http://127.0.0.1:9/simple"})
    with pytest.raises(OpsError, match=r"do not import: needs-driver:needs_driver: OSError: libcuda\.so\.1 is missing"):
        build(layout, {**want, "lock": lock})
    assert not list(layout.envs.glob("[!.]*"))


# Case 37


def test_case_37_other_torches_around_are_not_seen(
    layout: Layout, want: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = tmp_path / "fake"
    (fake / "torch").mkdir(parents=True)
    (fake / "torch/__init__.py").write_text("raise SystemExit('the fake torch')")
    site = fake / f".local/lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"
    shutil.copytree(fake / "torch", site / "torch")
    for name, value in (("PYTHONPATH", str(fake)), ("PYTHONUSERBASE", str(fake / ".local")), ("HOME", str(fake))):
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(fake)
    built = build(layout, want)
    assert built["torch"]["file"] == str(site_of(layout, built["env_id"]) / "torch/__init__.py")


# Cases 38, 42 and kills


def start(layout: Layout, want: dict[str, Any]) -> jobs.Snapshot:
    env_id = inspect(layout, want).env_id
    return jobs.start_or_attach(layout, f"env-{env_id}", environment_build.ENTRY, want)


def finish(layout: Layout, want: dict[str, Any]) -> jobs.Snapshot:
    """Start or attach, and follow to the end."""
    job = start(layout, want)
    while job.state == "running":
        job = jobs.poll(layout, job.job_id, wait=5)
    return job


def kill(layout: Layout, job_id: str) -> bool:
    """Kill a job's runner and wait until it is gone; tell whether it was still at work."""
    runner = jobs.recorded_process(layout.job(job_id))
    if runner is None or not processes.alive(runner):
        return False
    processes.send_signal([runner], signal.SIGKILL)
    assert not processes.wait_for_exit([runner], 10.0)
    return not (layout.job(job_id) / "exit.json").exists()


def test_case_38_a_half_environment_is_never_used(layout: Layout, want: dict[str, Any]) -> None:
    half = layout.env(inspect(layout, want).env_id)
    (half / "bin").mkdir(parents=True)
    (half / "bin/python").write_text("half")
    assert inspect(layout, want).state == "missing"
    with pytest.raises(OpsError, match="is not on this box"):
        inspection.check(layout, half.name)
    assert build(layout, want)["state"] == "complete"
    assert inspection.check(layout, half.name, full=True) == []


def works(env: Path) -> bool:
    """Tell whether an environment runs, as whoever uses it meanwhile would find out."""
    code = "import torch, transformers, demo_tool"
    return subprocess.run([env / "bin/python", "-c", code], check=False).returncode == 0


def test_case_42_20_kills_at_random_moments_always_end_complete(layout: Layout, want: dict[str, Any]) -> None:
    """The old environment drifted and is healed again and again; until the switch it stays as it was, and in use."""
    env = layout.env(build(layout, want)["env_id"])
    healing = {**want, "heal": True}
    mark = environment_build.site_packages(env) / "planted.py"
    mark.write_text("")
    whole = finish(layout, healing).elapsed
    moments, hits = random.Random(42), 0
    for round_ in range(20):
        mark.write_text(f"ROUND = {round_}\n")
        old = inspection.read(env)
        job = start(layout, healing)
        time.sleep(moments.uniform(0.0, whole))
        hits += kill(layout, job.job_id)
        assert works(env)
        if mark.exists():  # the old one: as it was, and nothing else
            assert inspection.read(env) == old
            drift = inspection.check(layout, env.name, full=True)
            assert [one.path.rpartition("/")[2] for one in drift] == [mark.name]
        else:
            assert inspection.check(layout, env.name, full=True) == []
        ended = finish(layout, healing)
        assert ended.state == "done", ended.log_tail
        assert not mark.exists()
        assert inspection.check(layout, env.name, full=True) == []
    assert hits >= 10
    assert [path.name for path in layout.envs.iterdir()] == [env.name]
    assert list(env.rglob("~*")) == []


def test_case_42_a_rerun_ends_what_the_killed_build_left_running(layout: Layout, folder: Path) -> None:
    index = wheels.Index([next(folder.glob("demo_tool-*"))])
    index.hold.set()
    try:
        lock = wheels.make_lock(folder.glob("demo_tool-*"))
        want = arguments(layout, lock, index_urls={"default": index.url})
        job = start(layout, want)
        while not index.asked:
            time.sleep(0.02)
        kill(layout, job.job_id)
        left = processes.find_marked(jobs.job_mark(layout, job.job_id), mark=jobs.JOB_MARK)
        assert any("uv" in (processes.PROC / str(one.pid) / "cmdline").read_text() for one in left)
        index.hold.clear()
        index.resume()
        assert finish(layout, want).state == "done"
        assert not [one for one in left if processes.alive(one)]
    finally:
        index.resume()
        index.close()


def test_case_42_a_second_caller_attaches_to_the_build(layout: Layout, want: dict[str, Any]) -> None:
    first, second = start(layout, want), start(layout, want)
    assert (first.state, first.attached, second.attached) == ("running", False, True)
    assert finish(layout, want).state in ("done", "running")
    assert inspect(layout, want).state == "complete"


# Case P1: drift


@pytest.fixture
def built(layout: Layout, want: dict[str, Any]) -> str:
    return str(build(layout, want)["env_id"])


def plant_package(site: Path) -> str:
    (site / "flashinfer").mkdir()
    (site / "flashinfer/__init__.py").write_text("")
    (site / "flashinfer-0.6.1.dist-info").mkdir()
    (site / "flashinfer-0.6.1.dist-info/METADATA").write_text("Name: flashinfer\n")
    return "package: flashinfer-0.6.1"


def edit_torch(site: Path) -> str:
    with (site / "torch/functional.py").open("a") as stream:
        stream.write("# patched\n")
    return "edited: lib/python"


def drop_pth(site: Path) -> str:
    (site / "evil.pth").write_text("import os\n")
    return "evil.pth (is run by every start"


def drop_sitecustomize(site: Path) -> str:
    (site / "sitecustomize.py").write_text("")
    return "sitecustomize.py (is run by every start"


def remove_file(site: Path) -> str:
    (site / "torch/functional.py").unlink()
    return "removed: lib/python"


@pytest.mark.parametrize(
    "damage", [plant_package, edit_torch, drop_pth, drop_sitecustomize, remove_file], ids=lambda one: one.__name__
)
def test_case_p1_drift_is_named_refused_and_healed(
    layout: Layout, want: dict[str, Any], built: str, damage: Callable[[Path], str]
) -> None:
    told = damage(site_of(layout, built))
    assert inspect(layout, want).state == "drifted"
    with pytest.raises(OpsError) as caught:
        build(layout, want)
    assert told in str(caught.value)
    assert "python_env_heal=true" in caught.value.remedy
    build(layout, {**want, "heal": True})
    assert inspection.check(layout, built, full=True) == []
    assert (site_of(layout, built) / "torch/functional.py").read_text() == wheels.torch_files(CPU, cuda=None)[
        "torch/functional.py"
    ]


def test_case_p1_an_edit_that_keeps_size_and_time_is_seen_by_the_full_check(layout: Layout, built: str) -> None:
    path = site_of(layout, built) / "torch/functional.py"
    stat = path.stat()
    path.write_text(path.read_text().replace("return 1", "return 2"))
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert inspection.check(layout, built) == []
    assert [one.kind for one in inspection.check(layout, built, full=True)] == ["edited"]


def test_a_new_time_alone_is_no_drift(layout: Layout, built: str) -> None:
    os.utime(site_of(layout, built) / "torch/functional.py")
    assert inspection.check(layout, built) == []


def test_running_its_python_by_hand_leaves_nothing_behind(layout: Layout, built: str) -> None:
    subprocess.run([layout.env(built) / "bin/python", "-c", "import torch.functional, transformers"], check=True)
    assert inspection.check(layout, built, full=True) == []


def test_an_experiment_by_the_documented_command_cannot_reach_the_environment(
    layout: Layout, built: str, tmp_path: Path, folder: Path
) -> None:
    wheels.make_wheel(
        folder, "sglang", "1.0", {"sglang.py": "", "torch/functional.py": "def einsum():\n    return 3\n"}
    )
    older = layout.root / "tools/uv-0.0.1/uv"  # of a lock before this one
    older.parent.mkdir()
    older.write_text("#!/bin/sh\nexit 9\n")
    os.utime(older, (1, 1))
    page = (wheels.UV_LOCK.parents[2] / "docs/environment.md").read_text()
    command = page.split("## Experiments")[1].split("```")[1].strip().replace("ENV_ID", built)
    surroundings = {**os.environ, "HOME": str(tmp_path), "UV_NO_INDEX": "1", "UV_FIND_LINKS": str(folder)}
    subprocess.run(["bash", "-c", command], check=True, cwd=layout.root, env=surroundings)
    copy = tmp_path / "experiment"
    shown = subprocess.run([copy / "bin/demo"], capture_output=True, text=True, check=True).stdout
    assert shown.strip() == str(copy)
    found = "import sglang, torch.functional; print(torch.functional.einsum())"
    shown = subprocess.run([copy / "bin/python", "-c", found], capture_output=True, text=True, check=True).stdout
    assert shown.strip() == "3"
    assert inspection.check(layout, built, full=True) == []


def test_another_base_python_is_drift(layout: Layout, built: str) -> None:
    place = layout.env(built) / "env.json"
    record = files.read_json(place) or {}
    record["base"]["version"] = "3.11.0"
    place.write_text(json.dumps(record))
    assert [one.kind for one in inspection.check(layout, built)] == ["base"]


# Profile preinstalled


@pytest.fixture
def image(tmp_path: Path, folder: Path) -> Path:
    """A rented image: a python with torch (the pinned one) in it."""
    place = tmp_path / "image"
    uv = str(Path(sys.executable).parent / "uv")
    subprocess.run([uv, "venv", "-q", "--python", sys.executable, str(place)], check=True)
    torch = wheels.make_wheel(tmp_path / "w", "torch", "2.11.0+cu128", wheels.torch_files("2.11.0+cu128", cuda="12.8"))
    subprocess.run(
        [uv, "pip", "install", "-q", "--python", str(place / "bin/python"), "--no-deps", str(torch)], check=True
    )
    return place


@pytest.fixture
def rented(layout: Layout, image: Path, tmp_path: Path, folder: Path) -> dict[str, Any]:
    lock = wheels.make_lock(
        [*(tmp_path / "w").glob("*.whl"), folder / "transformers-5.8.1-py3-none-any.whl"],
        profile="cu128",
        indexes={"torch": "http://127.0.0.1:9"},
        cuda="12.8",
    )
    return arguments(layout, lock, folder, profile="preinstalled", python=str(image / "bin/python"))


def test_preinstalled_inherits_torch_and_fingerprints_it(layout: Layout, rented: dict[str, Any], image: Path) -> None:
    built = build(layout, rented)
    assert built["torch"]["version"] == "2.11.0+cu128"
    assert str(image) in built["torch"]["file"]
    assert inspect(layout, rented).state == "complete"
    edited = next(image.rglob("torch/functional.py"))
    edited.write_text(edited.read_text() + "# patched\n")
    assert [one.path for one in inspection.check(layout, built["env_id"])] == [str(edited)]


def test_preinstalled_refuses_another_torch(layout: Layout, rented: dict[str, Any]) -> None:
    lock = rented["lock"].replace("torch==2.11.0+cu128", "torch==2.12.0+cu128")
    with pytest.raises(OpsError, match=r"torch is 2\.11\.0\+cu128, the lock pins 2\.12\.0\+cu128"):
        inspect(layout, {**rented, "lock": lock})


# Refusals before anything is changed


@pytest.fixture
def untouched(layout: Layout, want: dict[str, Any]) -> Iterator[None]:
    """The box stays as it was."""
    before = sorted(layout.root.rglob("*")) if layout.root.exists() else []
    yield
    assert (sorted(layout.root.rglob("*")) if layout.root.exists() else []) == before


@pytest.mark.usefixtures("untouched")
def test_a_root_that_is_a_file_is_refused(tmp_path: Path, want: dict[str, Any]) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OpsError, match=r"dflash_root=.*/file/sub: .*/file is a file"):
        inspect(Layout.of(tmp_path / "file/sub"), want)


@pytest.mark.usefixtures("untouched")
@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"python": "3.9"}, "python_env_python=3.9: no Python"),
        ({"python": "/nonexistent/python3"}, "/nonexistent/python3 does not run"),
        ({"profile": "gpu"}, "dflash_profile=gpu is unknown"),
        ({"find_links": ["/nonexistent"]}, "/nonexistent is not a folder"),
    ],
)
def test_bad_words_are_named(layout: Layout, want: dict[str, Any], change: dict[str, Any], told: str) -> None:
    with pytest.raises(OpsError, match=told):
        spec = inspection.Spec.of({**want, **change}, layout)
        status = inspection.inspect(layout, spec)
        environment_build.sources.plan(spec.lock, spec.sources, python=status.python.short)


def test_space_is_checked_where_it_will_be_used(layout: Layout, want: dict[str, Any]) -> None:
    lock = want["lock"].replace("# profile", f"# megabytes: {1 << 30}\n# profile")
    with pytest.raises(OpsError, match=r"The environment needs 1024\.0 TiB on "):
        build(layout, {**want, "lock": lock})
    assert not layout.envs.exists() or not list(layout.envs.glob("[!.]*"))
