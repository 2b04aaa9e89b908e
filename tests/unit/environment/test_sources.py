"""Sources of packages and of uv, errors of uv, checks of the self-test, and the base Python."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import tomllib
import wheels
from dflash_ops.core.errors import OpsError
from dflash_ops.core.paths import Layout
from dflash_ops.environment import interpreters, lockfile, self_test, sources, uv_binary, uv_command, uv_install
from dflash_ops.environment.sources import Sources
from environments import UNREACHABLE

TORCH_URL = "https://index.example/cu128"


@pytest.fixture
def lock(tmp_path: Path) -> lockfile.Lockfile:
    """Lockfile of a torch with a dedicated index, and numpy."""
    paths = [
        wheels.make_wheel(tmp_path / "wheels", "torch", "2.11.0+cu128", {}, tag="cp312-cp312-manylinux_2_28_x86_64"),
        wheels.make_wheel(tmp_path / "wheels", "numpy", "2.5.5", {}),
    ]
    return lockfile.require_complete(
        wheels.make_lock(paths, profile="cu128", indexes={"torch": TORCH_URL}), name="t.lock"
    )


def names(group: sources.SourceGroup) -> list[str]:
    """Return the package names of a group."""
    return [pin.name for pin in group.pins]


def test_package_with_a_dedicated_index_is_grouped_there(lock: lockfile.Lockfile) -> None:
    dedicated, main = sources.plan(lock, Sources({}, ()), python="3.12")
    assert (names(dedicated), dedicated.index, dedicated.dedicated) == (["torch"], TORCH_URL, True)
    assert (names(main), main.index, main.dedicated) == (["numpy"], "", False)


def test_mirrors_replace_each_index(lock: lockfile.Lockfile) -> None:
    urls = {"default": "https://mirror.example/simple", "torch": "https://mirror.example/torch"}
    dedicated, main = sources.plan(lock, Sources(urls, ()), python="3.12")
    assert (dedicated.index, main.index) == (urls["torch"], urls["default"])


def test_wheel_in_a_folder_replaces_the_index(lock: lockfile.Lockfile, tmp_path: Path) -> None:
    (only,) = sources.plan(lock, Sources({"torch": "none"}, (tmp_path / "wheels",)), python="3.12")
    assert names(only) == ["torch", "numpy"] or names(only) == ["numpy", "torch"]
    assert not only.dedicated


def test_wheel_for_another_python_is_ignored(lock: lockfile.Lockfile, tmp_path: Path) -> None:
    with pytest.raises(OpsError, match=r"torch==2\.11\.0\+cu128 has no source.*Python 3\.11"):
        sources.plan(lock, Sources({"torch": "none"}, (tmp_path / "wheels",)), python="3.11")


def test_disabled_default_index_passes_no_index(lock: lockfile.Lockfile, tmp_path: Path) -> None:
    folder = tmp_path / "wheels"
    groups = sources.plan(lock, Sources({"default": "none"}, (folder,)), python="3.12")
    request = uv_command.write(tmp_path / "request", groups, (folder,))
    assert request.arguments[:3] == ("--find-links", str(folder), "-r")
    assert request.arguments[-1] == "--no-index"
    assert request.env_vars == {}


def test_credentials_of_indexes_are_in_no_argument_or_file(lock: lockfile.Lockfile, tmp_path: Path) -> None:
    urls = {"default": "https://me:s3cret@mirror.example/simple", "torch": "https://you:p%40ss@mirror.example/torch"}
    groups = sources.plan(lock, Sources(urls, ()), python="3.12")
    request = uv_command.write(tmp_path / "request", groups, ())
    written = " ".join([*request.arguments, *(path.read_text() for path in (tmp_path / "request").iterdir())])
    assert "https://mirror.example/torch" in written
    assert not [secret for secret in ("me:", "s3cret", "you", "p%40ss", "p@ss") if secret in written]
    assert request.env_vars == {
        "UV_DEFAULT_INDEX": urls["default"],
        "UV_INDEX_TORCH_USERNAME": "you",
        "UV_INDEX_TORCH_PASSWORD": "p@ss",
    }


def test_dedicated_index_serves_only_its_package(lock: lockfile.Lockfile, tmp_path: Path) -> None:
    """Check both settings: `sources` ties torch to its index, `explicit` closes the index to all other packages."""
    uv_command.write(tmp_path / "request", sources.plan(lock, Sources({}, ()), python="3.12"), ())
    settings = tomllib.loads((tmp_path / "request/pyproject.toml").read_text())["tool"]["uv"]
    assert {name: source["index"] for name, source in settings["sources"].items()} == {"torch": "torch"}
    assert [(index["name"], index["explicit"]) for index in settings["index"]] == [("torch", True)]


def test_locally_built_wheel_is_required_in_a_folder(tmp_path: Path) -> None:
    wheel = wheels.make_wheel(tmp_path / "wheels", "causal-conv1d", "1.6.1", {}, tag="cp312-cp312-linux_x86_64")
    text = (
        wheels.make_lock([wheel]).replace("==1.6.1", "==1.6.1 ; python_version == '3.12'") + "# built: causal-conv1d\n"
    )
    lock = lockfile.require_complete(text, name="t.lock")
    (only,) = sources.plan(lock, Sources({}, (wheel.parent,)), python="3.12")
    assert names(only) == ["causal-conv1d"]
    assert sources.plan(lock, Sources({}, ()), python="3.11")
    with pytest.raises(OpsError, match=r"causal-conv1d==1\.6\.1 was built by hand"):
        sources.plan(lock, Sources({}, ()), python="3.12")


def test_passwords_in_urls_are_hidden() -> None:
    text = "error at https://me:s3cret@mirror.example/simple/torch/"
    assert sources.without_password(text) == "error at https://***@mirror.example/simple/torch/"


@pytest.fixture
def uv_wheel(tmp_path: Path) -> Path:
    """Wheel of the pinned uv with this machine's real program."""
    pin = uv_binary.uv_pin(wheels.UV_LOCK.read_text())
    path = tmp_path / "uvs" / f"uv-{pin.version}-py3-none-manylinux_2_17_x86_64.manylinux2014_x86_64.whl"
    path.parent.mkdir()
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.write(Path(sys.executable).parent / "uv", f"uv-{pin.version}.data/scripts/uv")
        info = f"uv-{pin.version}.dist-info"
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: uv\nVersion: {pin.version}\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: false\n")
    return path


def uv_lock(wheel: Path) -> str:
    """Return a lockfile of a uv wheel."""
    return f"uv=={wheel.name.split('-')[1]} --hash=sha256:{wheels.sha256(wheel)}\n"


def test_uv_comes_from_a_folder(layout: Layout, uv_wheel: Path) -> None:
    program = uv_binary.ensure(layout, uv_lock(uv_wheel), Sources({"default": "none"}, (uv_wheel.parent,)))
    assert program.stat().st_mode & 0o777 == 0o755
    shutil.rmtree(uv_wheel.parent)
    other = f"uv=={program.parent.name[3:]} --hash=sha256:{'0' * 64}\n"
    assert uv_binary.ensure(layout, other, Sources({}, ())) == program


def test_uv_is_available_only_with_a_wheel_in_a_folder(layout: Layout, uv_wheel: Path) -> None:
    lock = uv_lock(uv_wheel)
    assert not uv_binary.is_available(layout, lock, Sources({}, ()))
    assert uv_binary.is_available(layout, lock, Sources({}, (uv_wheel.parent,)))
    with pytest.raises(OpsError, match="No folder on this box has the wheel of uv") as caught:
        uv_binary.ensure(layout, lock, Sources({}, ()))
    assert "run deploy.yml" in caught.value.remedy
    uv_binary.ensure(layout, lock, Sources({}, (uv_wheel.parent,)))
    assert uv_binary.is_available(layout, lock, Sources({}, ()))


def test_uv_wheel_with_another_hash_is_rejected(layout: Layout, uv_wheel: Path) -> None:
    with pytest.raises(OpsError, match="sha256") as caught:
        uv_binary.ensure(layout, wheels.UV_LOCK.read_text(), Sources({}, (uv_wheel.parent,)))
    assert wheels.sha256(uv_wheel) in str(caught.value)
    assert not (layout.root / "tools").exists()


def play(repo: Path, layout: Layout, folder: Path, **urls: str) -> str:
    """Run the module through Ansible without uv on the box, and return its output.

    The controller's pip has an unreachable index and no wheel folders.
    """
    arguments = {
        "root": str(layout.root),
        "profile": "cpu",
        "lock_file": str(folder / "t.lock"),
        "install_packages": False,
        "find_links": [str(folder)],
        "index_urls": urls,
    }
    command = [str(Path(sys.executable).with_name("ansible")), "localhost", "-i", "localhost,", "-c", "local"]
    command += ["-e", f"ansible_python_interpreter={sys.executable}"]
    command += ["-m", "dflash_environment", "-a", json.dumps(arguments)]
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "UV_"))}
    pip = {"PIP_CONFIG_FILE": os.devnull, "PIP_NO_CACHE_DIR": "1", "PIP_RETRIES": "0", "PIP_INDEX_URL": UNREACHABLE}
    env_vars = {**inherited, **pip, "ANSIBLE_CONFIG": str(repo / "ansible.cfg")}
    done = subprocess.run(command, cwd=repo, env=env_vars, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


@pytest.fixture
def lock_folder(tmp_path: Path, uv_wheel: Path) -> Path:
    """Folder with a lockfile of one small wheel, the wheel, and uv's lockfile."""
    folder = tmp_path / "locks"
    wheel = wheels.make_wheel(folder, "demo", "1.0", {"demo.py": ""})
    (folder / "t.lock").write_text(wheels.make_lock([wheel]))
    (folder / "uv.lock").write_text(uv_lock(uv_wheel))
    return folder


def test_controller_downloads_uv_from_the_configured_index(
    repo: Path, layout: Layout, lock_folder: Path, uv_wheel: Path
) -> None:
    index = wheels.Index([uv_wheel])
    try:
        output = play(repo, layout, lock_folder, uv=index.url, default="none")
    finally:
        index.close()
    assert "is complete: 1 packages" in output, output
    assert (layout.root / "wheelhouse" / uv_wheel.name).is_file()


def test_failed_uv_download_has_a_remedy_and_hides_the_password(
    repo: Path, layout: Layout, lock_folder: Path
) -> None:
    output = play(repo, layout, lock_folder, default="http://me:s3cret@127.0.0.1:9/simple")
    assert "The controller cannot download uv" in output, output
    assert "make wheelhouse" in output
    assert "s3cret" not in output
    assert "the index of uv is disabled" in play(repo, layout, lock_folder, default="none")
    assert not layout.root.exists()


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        ("error: Hash mismatch for `x==1`\nExpected: sha256:aa\nComputed: sha256:bb", "differs from the lockfile's"),
        ("error: Failed to fetch: `https://x/simple/`\n cause: dns error", "when the network is back"),
        ("No solution found when resolving dependencies", "a source lacks this version"),
        ("something new", "the environment in use was not changed"),
    ],
)
def test_uv_failures_have_a_remedy(text: str, remedy: str) -> None:
    error = uv_install.failure("installing", 2, text.splitlines())
    assert remedy in error.remedy
    assert text.splitlines()[0] in error.message


def check(**facts: object) -> None:
    """Check self-test results for a CUDA lockfile on a machine without the nvidia-uvm device."""
    lock = lockfile.parse("# profile: cu128\n# python: 3.12\n# platform: x\n# cuda: 12.8\n")
    self_test.check({"failed": {}, "sys_path": [], **facts}, lock, [Path("/env")], uvm=Path("/nonexistent/nvidia-uvm"))


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        ("RuntimeError: The NVIDIA driver on your system is too old (found version 11040)", "driver is older"),
        ("RuntimeError: Found no NVIDIA driver on your system", "no NVIDIA driver is visible"),
        (
            "RuntimeError: CUDA error: no kernel image is available for execution on the device",
            "no kernels for this GPU",
        ),
        (
            "RuntimeError: CUDA unknown error - this may be due to an incorrectly set up environment",
            "nvidia-uvm is missing",
        ),
    ],
)
def test_gpu_error_has_a_named_cause(error: str, cause: str) -> None:
    with pytest.raises(OpsError, match=cause) as caught:
        check(gpu_error=error)
    assert caught.value.remedy


def test_wrong_sum_names_the_gpu() -> None:
    check(gpus=[{"index": 0, "ok": True}])
    with pytest.raises(OpsError, match="GPU 1 computes a wrong sum"):
        check(gpus=[{"index": 0, "ok": True}, {"index": 1, "ok": False}])


def test_site_packages_outside_the_environment_fail() -> None:
    check(sys_path=["/env/lib/python3.12/site-packages", "/usr/lib/python3.12"])
    with pytest.raises(OpsError, match="/usr/lib/python3/dist-packages"):
        check(sys_path=["/usr/lib/python3/dist-packages"])


def test_missing_fast_paths_are_reported_for_cuda_only() -> None:
    cuda = lockfile.parse("# cuda: 12.8\n")
    facts = {"fast_paths": {"flash-linear-attention": True, "causal-conv1d": False}}
    assert [text.split(" is not")[0] for text in self_test.missing_fast_paths(facts, cuda)] == ["causal-conv1d"]
    assert self_test.missing_fast_paths(facts, lockfile.parse("")) == []


def test_missing_python_is_named_with_the_tried_paths() -> None:
    with pytest.raises(OpsError, match=r"no Python 3\.7 on this box .*tried:.*/usr/bin/python3"):
        interpreters.find("", ("3.7",))


def test_missing_programs_are_reported_in_one_message(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    python = interpreters.find("", ("3.10", "3.11", "3.12", "3.13"))
    monkeypatch.setattr(interpreters, "SYSTEM_PATH", str(tmp_path))
    monkeypatch.setattr(interpreters.os, "geteuid", lambda: 1000)
    missing = interpreters.missing_packages(python)
    assert missing[:2] == ["tmux", "g++"]
    with pytest.raises(OpsError, match=r"Missing on this box: tmux, g\+\+") as caught:
        interpreters.require_installable(missing)
    assert "apt-get install -y tmux g++" in caught.value.remedy
