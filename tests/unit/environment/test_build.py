"""Builds with real uv and small wheels: record, failures, sources."""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import wheels
from dflash_ops.core import files
from dflash_ops.core.errors import OpsError
from dflash_ops.core.paths import Layout
from dflash_ops.environment import build as environment_build
from dflash_ops.environment import inspection, uv_install
from environments import CPU, UNREACHABLE, arguments, build, inspect, site_packages


def test_build_is_complete_and_recorded(layout: Layout, params: dict[str, Any], wheel_folder: Path) -> None:
    assert inspect(layout, params).state == "missing"
    built = build(layout, params)
    record = files.read_json(layout.env(built["env_id"]) / "env.json")
    assert record is not None
    rows = {row["name"]: (row["version"], row["wheel_sha256"]) for row in record["packages"]}
    assert rows["torch"] == (CPU, wheels.sha256(wheel_folder / f"torch-{CPU}-py3-none-any.whl"))
    assert rows["demo-tool"][0] == "1.0"
    assert record["self_test"]["torch"]["file"].startswith(str(layout.env(built["env_id"])))
    assert "bin/python" in record["files"]
    assert any(name.endswith("torch/__init__.py") for name in record["files"])
    assert not list(layout.env(built["env_id"]).rglob("pip*"))
    assert inspect(layout, params).state == "complete"
    assert inspection.find_drift(layout, built["env_id"], full=True) == []


def test_scripts_work_below_a_root_with_a_space(layout: Layout, params: dict[str, Any]) -> None:
    env = layout.env(build(layout, params)["env_id"])
    assert " " in str(env)
    output = subprocess.run([env / "bin/demo"], capture_output=True, text=True, check=True).stdout
    assert output.strip() == str(env)


def test_no_file_contains_the_staging_path(layout: Layout, params: dict[str, Any]) -> None:
    env = layout.env(build(layout, params)["env_id"])
    assert (env / "bin/demo").is_file()
    sources = [path for path in env.rglob("*") if path.is_file() and not path.is_symlink() and path.suffix != ".pyc"]
    assert [path for path in sources if b".building-" in path.read_bytes()] == []


def test_same_lockfile_gives_the_same_fingerprint_on_two_boxes(
    layout: Layout, params: dict[str, Any], tmp_path: Path
) -> None:
    other = Layout.of(tmp_path / "second box")
    second = arguments(other, params["lock"], Path(params["find_links"][0]))
    first_built, second_built = build(layout, params), build(other, second)
    assert first_built["env_id"] == second_built["env_id"]
    assert first_built["fingerprint"] == second_built["fingerprint"]


def test_env_id_depends_on_every_byte_of_the_lockfile(layout: Layout, params: dict[str, Any]) -> None:
    assert inspect(layout, params).env_id != inspect(layout, {**params, "lock": params["lock"] + "# comment\n"}).env_id


def test_hash_mismatch_message_has_the_file_and_both_hashes(
    layout: Layout, params: dict[str, Any], wheel_folder: Path
) -> None:
    old = build(layout, params)
    right = wheels.sha256(wheel_folder / f"torch-{CPU}-py3-none-any.whl")
    wrong = ("0" if right[0] != "0" else "1") + right[1:]
    with pytest.raises(OpsError) as caught:
        build(layout, {**params, "lock": params["lock"].replace(right, wrong)})
    assert "torch" in str(caught.value)
    assert right in str(caught.value)
    assert wrong in str(caught.value)
    assert inspection.find_drift(layout, old["env_id"], full=True) == []
    assert [path.name for path in layout.envs.iterdir() if not path.name.startswith(".")] == [old["env_id"]]


def test_truncated_wheel_fails_and_a_retry_with_the_full_wheel_succeeds(
    layout: Layout, params: dict[str, Any], wheel_folder: Path
) -> None:
    path = wheel_folder / "transformers-5.8.1-py3-none-any.whl"
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(OpsError, match="transformers"):
        build(layout, params)
    assert inspect(layout, params).state == "missing"
    path.write_bytes(content)
    assert build(layout, params)["state"] == "complete"


def make_big_wheel(folder: Path) -> Path:
    """Write a wheel with 400 kB of incompressible text."""
    data = random.Random(1).randbytes(200_000).hex()
    return wheels.make_wheel(folder, "big", "1.0", {"big.py": f"DATA = {data!r}\n"})


def test_truncated_download_fails_and_a_retry_succeeds(
    layout: Layout, wheel_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uv_install, "NETWORK_PAUSES", ())
    big = make_big_wheel(wheel_folder)
    index = wheels.Index([big])
    try:
        index.truncate_at[big.name] = 0.9
        params = arguments(layout, wheels.make_lock([big]), index_urls={"default": index.url})
        with pytest.raises(OpsError, match="big") as caught:
            build(layout, params)
        assert "run it again" in caught.value.remedy
        assert inspect(layout, params).state == "missing"
        index.truncate_at.clear()
        assert build(layout, params)["state"] == "complete"
    finally:
        index.close()


def test_build_retries_a_network_failure_by_itself(
    layout: Layout, wheel_folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uv_install, "NETWORK_PAUSES", (0.1, 0.1))
    big = make_big_wheel(wheel_folder)
    index = wheels.Index([big])
    try:
        index.truncate_at[big.name] = 0.9
        index.truncations_left = 8  # more than uv retries by itself
        built = build(layout, arguments(layout, wheels.make_lock([big]), index_urls={"default": index.url}))
    finally:
        index.close()
    assert built["state"] == "complete"
    assert "the network failed" in capsys.readouterr().out


def test_unreachable_index_fails_with_its_address_and_leaves_no_environment(
    layout: Layout, wheel_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uv_install, "NETWORK_PAUSES", (0.1,))
    torch = next(wheel_folder.glob("torch-*"))
    lock = wheels.make_lock([torch], indexes={"torch": UNREACHABLE})
    with pytest.raises(OpsError, match=r"127\.0\.0\.1:9") as caught:
        build(layout, arguments(layout, lock))
    assert "python_env_index_urls" in caught.value.remedy
    with pytest.raises(OpsError, match=r"torch==.* has no source"):
        build(layout, arguments(layout, lock, index_urls={"default": "none", "torch": "none"}))
    assert not list(layout.envs.glob("[!.]*"))


def test_package_with_a_dedicated_index_is_requested_there_only(layout: Layout, tmp_path: Path) -> None:
    right = wheels.make_wheel(tmp_path / "a", "torch", "2.11.0+cu128", wheels.torch_files("2.11.0+cu128", cuda="12.8"))
    wrong = wheels.make_wheel(tmp_path / "b", "torch", "2.11.0", wheels.torch_files("2.11.0+cu130", cuda="13.0"))
    other = wheels.make_wheel(tmp_path / "b", "transformers", "5.8.1", wheels.TRANSFORMERS)
    dedicated, main = wheels.Index([right, other]), wheels.Index([wrong, other])
    try:
        lock = wheels.make_lock([right, other], profile="cu128", indexes={"torch": dedicated.url}, cuda="12.8")
        built = build(layout, arguments(layout, lock, profile="cu128", index_urls={"default": main.url}))
        assert built["torch"]["version"] == "2.11.0+cu128"
        assert not [path for path in main.requests if "/torch" in path]
        assert not [path for path in dedicated.requests if "/transformers" in path]
    finally:
        dedicated.close()
        main.close()


def test_torch_with_another_cuda_version_fails_the_self_test(layout: Layout, tmp_path: Path) -> None:
    torch = wheels.make_wheel(tmp_path / "w", "torch", "2.11.0+cu128", wheels.torch_files("2.11.0+cu130", cuda="13.0"))
    lock = wheels.make_lock([torch], profile="cu128", indexes={"torch": UNREACHABLE}, cuda="12.8")
    with pytest.raises(
        OpsError, match=r"torch is 2\.11\.0\+cu130 for CUDA 13\.0, the lockfile pins 2\.11\.0\+cu128 for CUDA 12\.8"
    ):
        build(layout, arguments(layout, lock, tmp_path / "w", profile="cu128"))


def test_failed_import_names_the_package_and_leaves_no_environment(
    layout: Layout, params: dict[str, Any], wheel_folder: Path
) -> None:
    module = "raise OSError('libcuda.so.1 is missing')\n"
    wheels.make_wheel(wheel_folder, "needs-driver", "1.0", {"needs_driver.py": module})
    lock = wheels.make_lock(sorted(wheel_folder.glob("*.whl")), indexes={"torch": UNREACHABLE})
    with pytest.raises(OpsError, match=r"do not import: needs-driver:needs_driver: OSError: libcuda\.so\.1 is missing"):
        build(layout, {**params, "lock": lock})
    assert not list(layout.envs.glob("[!.]*"))


def test_other_torch_packages_of_the_user_are_not_imported(
    layout: Layout, params: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = tmp_path / "fake"
    (fake / "torch").mkdir(parents=True)
    (fake / "torch/__init__.py").write_text("raise SystemExit('the fake torch')")
    site = fake / f".local/lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"
    shutil.copytree(fake / "torch", site / "torch")
    for name, value in (("PYTHONPATH", str(fake)), ("PYTHONUSERBASE", str(fake / ".local")), ("HOME", str(fake))):
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(fake)
    built = build(layout, params)
    assert built["torch"]["file"] == str(site_packages(layout, built["env_id"]) / "torch/__init__.py")


@pytest.fixture
def untouched(layout: Layout, params: dict[str, Any]) -> Iterator[None]:
    """Fail if the test changes the box."""
    before = sorted(layout.root.rglob("*")) if layout.root.exists() else []
    yield
    assert (sorted(layout.root.rglob("*")) if layout.root.exists() else []) == before


@pytest.mark.usefixtures("untouched")
def test_root_that_is_a_file_fails(tmp_path: Path, params: dict[str, Any]) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OpsError, match=r"dflash_root=.*/file/sub: .*/file is a file"):
        inspect(Layout.of(tmp_path / "file/sub"), params)


@pytest.mark.usefixtures("untouched")
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"python": "3.9"}, "python_env_python=3.9: no Python"),
        ({"python": "/nonexistent/python3"}, "/nonexistent/python3 does not run"),
        ({"profile": "gpu"}, "dflash_profile=gpu is unknown"),
        ({"find_links": ["/nonexistent"]}, "/nonexistent is not a folder"),
    ],
)
def test_invalid_argument_is_named(
    layout: Layout, params: dict[str, Any], change: dict[str, Any], message: str
) -> None:
    with pytest.raises(OpsError, match=message):
        spec = inspection.Spec.from_params({**params, **change}, layout)
        status = inspection.inspect(layout, spec)
        environment_build.sources.plan(spec.lock, spec.sources, python=status.python.short)


def test_free_space_is_checked_on_the_mount_of_the_environments(layout: Layout, params: dict[str, Any]) -> None:
    lock = params["lock"].replace("# profile", f"# megabytes: {1 << 30}\n# profile")
    with pytest.raises(OpsError, match=r"The environment needs 1024\.0 TiB on "):
        build(layout, {**params, "lock": lock})
    assert not layout.envs.exists() or not list(layout.envs.glob("[!.]*"))
