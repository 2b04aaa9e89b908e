"""Builds and uv's cache: copies, damage and planted files."""

from __future__ import annotations

import marshal
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import wheels
from dflash_ops.core.errors import OpsError
from dflash_ops.core.paths import Layout
from dflash_ops.environment import inspection, uv_install
from environments import CPU, arguments, build, edit_torch, shared_files, site_packages


def test_damaged_cache_is_cleaned_and_the_build_repeated(layout: Layout, params: dict[str, Any]) -> None:
    build(layout, params)
    cached = list(layout.uv_cache.rglob("torch/functional.py"))
    assert cached
    for path in cached:
        path.write_text("def einsum():\n    return 2\n")
    second = build(layout, {**params, "lock": params["lock"] + "# another environment\n"})
    text = (site_packages(layout, second["env_id"]) / "torch/functional.py").read_text()
    assert text == wheels.torch_files(CPU, cuda=None)["torch/functional.py"]


def test_file_planted_in_the_cache_is_not_installed(layout: Layout, params: dict[str, Any]) -> None:
    build(layout, params)
    for path in list(layout.uv_cache.rglob("torch/functional.py")):
        (path.parent / "evil.py").write_text("")
        (path.parents[1] / "zz.pth").write_text("import sys\n")
    second = build(layout, {**params, "lock": params["lock"] + "# another environment\n"})
    site = site_packages(layout, second["env_id"])
    assert (site / "torch/functional.py").exists()
    assert not (site / "torch/evil.py").exists() and not (site / "zz.pth").exists()


def test_planted_file_and_damaged_package_are_cleaned_together(layout: Layout, params: dict[str, Any]) -> None:
    build(layout, params)
    for path in list(layout.uv_cache.rglob("torch/functional.py")):
        path.write_text("def einsum():\n    return 2\n")
    for path in list(layout.uv_cache.rglob("demo_tool.py")):
        (path.parent / "evil.py").write_text("")
    second = build(layout, {**params, "lock": params["lock"] + "# another environment\n"})
    site = site_packages(layout, second["env_id"])
    assert (site / "torch/functional.py").read_text() == wheels.torch_files(CPU, cuda=None)["torch/functional.py"]
    assert not (site / "evil.py").exists()


@pytest.mark.parametrize("location", ["__pycache__/demo_tool.{tag}.pyc", "planted.pyc"])
def test_bytecode_planted_in_the_cache_is_not_installed(layout: Layout, params: dict[str, Any], location: str) -> None:
    """Plant bytecode with the source's mtime and size, which Python would load."""
    first = layout.env(build(layout, params)["env_id"])
    (compiled,) = first.rglob("demo_tool.*.pyc")
    foreign = marshal.dumps(compile("def main():\n    print(666)\n", "demo_tool.py", "exec"))
    for source in list(layout.uv_cache.rglob("demo_tool.py")):
        stat = source.stat()
        header = compiled.read_bytes()[:8] + struct.pack("<II", int(stat.st_mtime), stat.st_size)
        planted = source.parent / location.format(tag=sys.implementation.cache_tag)
        planted.parent.mkdir(exist_ok=True)
        planted.write_bytes(header + foreign)
    second = layout.env(build(layout, {**params, "lock": params["lock"] + "# another environment\n"})["env_id"])
    assert not list(second.rglob("planted.pyc"))
    assert foreign not in b"".join(path.read_bytes() for path in second.rglob("*.pyc"))
    output = subprocess.run([second / "bin/demo"], capture_output=True, text=True, check=True).stdout
    assert output.strip() == str(second)


def test_edited_bytecode_is_drift_and_a_heal_recompiles_it(layout: Layout, params: dict[str, Any]) -> None:
    env = layout.env(build(layout, params)["env_id"])
    (compiled,) = env.rglob("demo_tool.*.pyc")
    before = compiled.read_bytes()
    foreign = marshal.dumps(compile("def main():\n    print(666)\n", "demo_tool.py", "exec"))
    compiled.write_bytes(before[:16] + foreign)
    (drift,) = inspection.find_drift(layout, env.name)
    assert (drift.kind, env / drift.path) == ("edited", compiled)
    build(layout, {**params, "heal": True})
    assert compiled.read_bytes()[16:] == before[16:]
    assert inspection.find_drift(layout, env.name, full=True) == []


def test_environment_shares_no_file_with_the_cache(layout: Layout, params: dict[str, Any]) -> None:
    env = layout.env(build(layout, params)["env_id"])
    assert list(layout.uv_cache.rglob("torch/functional.py"))
    assert shared_files(env) == []
    assert [path.name for path in layout.envs.iterdir()] == [env.name]
    assert [path.name for path in layout.jobs.iterdir() if path.is_dir()] == []


def test_healed_environment_shares_no_file_with_the_cache(layout: Layout, params: dict[str, Any]) -> None:
    env = layout.env(build(layout, params)["env_id"])
    text = wheels.torch_files(CPU, cuda=None)["torch/functional.py"]
    edit_torch(site_packages(layout, env.name))
    build(layout, {**params, "heal": True})
    assert shared_files(env) == []
    assert {path.read_text() for path in layout.root.rglob("torch/functional.py")} == {text}


def test_replaced_environment_is_removed_once_no_process_uses_it(layout: Layout, params: dict[str, Any]) -> None:
    env = layout.env(build(layout, params)["env_id"])
    code = "import mmap, sys; file = open(sys.argv[1]); mapped = mmap.mmap(file.fileno(), 0, prot=1); print(); input()"
    used = site_packages(layout, env.name) / "torch/functional.py"
    user = subprocess.Popen([sys.executable, "-uc", code, used], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert user.stdout is not None
    user.stdout.readline()
    (env / "planted.py").write_text("")
    build(layout, {**params, "heal": True})
    assert len(list(layout.envs.glob(".replaced-*"))) == 1
    user.communicate(b"\n")
    build(layout, params)
    assert [path.name for path in layout.envs.iterdir()] == [env.name]


def test_downloads_of_a_failed_build_are_reused(
    layout: Layout, wheel_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uv_install, "NETWORK_PAUSES", ())
    torch, truncated = next(wheel_folder.glob("torch-*")), next(wheel_folder.glob("demo_tool-*"))
    index = wheels.Index([torch, truncated])
    index.truncate_at[truncated.name] = 0.5
    try:
        lock = wheels.make_lock([torch, truncated], indexes={"torch": index.url})
        params = arguments(layout, lock, index_urls={"default": index.url})
        with pytest.raises(OpsError, match="demo-tool"):
            build(layout, params)
        index.truncate_at.clear()
        before = len(index.requests)
        build(layout, params)
        assert not [path for path in index.requests[before:] if path.startswith("/files/torch-")]
    finally:
        index.close()


def test_cache_dir_sets_the_cache_location(layout: Layout, params: dict[str, Any], tmp_path: Path) -> None:
    cache = tmp_path / "shared cache"
    params = {**params, "cache_dir": str(cache)}
    build(layout, params)
    env = layout.env(build(layout, {**params, "lock": params["lock"] + "# another environment\n"})["env_id"])
    assert list(cache.rglob("torch/functional.py"))
    assert shared_files(env) == []
    assert not layout.uv_cache.exists()
