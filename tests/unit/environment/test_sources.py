"""Where packages come from, where uv comes from, and how uv's failures read."""

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

NOWHERE = "http://127.0.0.1:9/simple"
TORCH_URL = "https://index.example/cu128"


@pytest.fixture
def lock(tmp_path: Path) -> lockfile.Lock:
    made = [
        wheels.make_wheel(tmp_path / "made", "torch", "2.11.0+cu128", {}, tag="cp312-cp312-manylinux_2_28_x86_64"),
        wheels.make_wheel(tmp_path / "made", "numpy", "2.5.5", {}),
    ]
    return lockfile.require_complete(
        wheels.make_lock(made, profile="cu128", indexes={"torch": TORCH_URL}), name="t.lock"
    )


def names(part: sources.Part) -> list[str]:
    return [pin.name for pin in part.pins]


def test_a_package_with_an_index_of_its_own_is_asked_there_only(lock: lockfile.Lock) -> None:
    special, main = sources.plan(lock, Sources({}, ()), python="3.12")
    assert (names(special), special.index, special.own) == (["torch"], TORCH_URL, True)
    assert (names(main), main.index, main.own) == (["numpy"], "", False)


def test_mirrors_replace_each_index(lock: lockfile.Lock) -> None:
    urls = {"default": "https://mirror.example/simple", "torch": "https://mirror.example/torch"}
    special, main = sources.plan(lock, Sources(urls, ()), python="3.12")
    assert (special.index, main.index) == (urls["torch"], urls["default"])


def test_a_folder_with_the_wheel_leaves_the_index_out(lock: lockfile.Lock, tmp_path: Path) -> None:
    (only,) = sources.plan(lock, Sources({"torch": "none"}, (tmp_path / "made",)), python="3.12")
    assert names(only) == ["torch", "numpy"] or names(only) == ["numpy", "torch"]
    assert not only.own


def test_a_wheel_for_another_python_does_not_count(lock: lockfile.Lock, tmp_path: Path) -> None:
    with pytest.raises(OpsError, match=r"torch==2\.11\.0\+cu128 has no source.*Python 3\.11"):
        sources.plan(lock, Sources({"torch": "none"}, (tmp_path / "made",)), python="3.11")


def test_no_index_at_all_is_offline(lock: lockfile.Lock, tmp_path: Path) -> None:
    folder = tmp_path / "made"
    parts = sources.plan(lock, Sources({"default": "none"}, (folder,)), python="3.12")
    request = uv_command.write(tmp_path / "request", parts, (folder,))
    assert request.arguments[:3] == ("--find-links", str(folder), "-r")
    assert request.arguments[-1] == "--no-index"
    assert request.environment == {}


def test_users_and_passwords_of_indexes_are_in_no_argument_and_in_no_file(lock: lockfile.Lock, tmp_path: Path) -> None:
    urls = {"default": "https://me:s3cret@mirror.example/simple", "torch": "https://you:p%40ss@mirror.example/torch"}
    parts = sources.plan(lock, Sources(urls, ()), python="3.12")
    request = uv_command.write(tmp_path / "request", parts, ())
    written = " ".join([*request.arguments, *(path.read_text() for path in (tmp_path / "request").iterdir())])
    assert "https://mirror.example/torch" in written
    assert not [word for word in ("me:", "s3cret", "you", "p%40ss", "p@ss") if word in written]
    assert request.environment == {
        "UV_DEFAULT_INDEX": urls["default"],
        "UV_INDEX_TORCH_USERNAME": "you",
        "UV_INDEX_TORCH_PASSWORD": "p@ss",
    }


def test_case_35_an_index_of_its_own_is_closed_to_all_other_packages(lock: lockfile.Lock, tmp_path: Path) -> None:
    """The sources alone tie torch to its index; `explicit` keeps every other name away from it."""
    uv_command.write(tmp_path / "request", sources.plan(lock, Sources({}, ()), python="3.12"), ())
    settings = tomllib.loads((tmp_path / "request/pyproject.toml").read_text())["tool"]["uv"]
    assert {name: source["index"] for name, source in settings["sources"].items()} == {"torch": "torch"}
    assert [(index["name"], index["explicit"]) for index in settings["index"]] == [("torch", True)]


def test_a_wheel_built_by_hand_comes_from_a_folder_or_is_missed_by_name(tmp_path: Path) -> None:
    made = wheels.make_wheel(tmp_path / "made", "causal-conv1d", "1.6.1", {}, tag="cp312-cp312-linux_x86_64")
    text = (
        wheels.make_lock([made]).replace("==1.6.1", "==1.6.1 ; python_version == '3.12'") + "# built: causal-conv1d\n"
    )
    built = lockfile.require_complete(text, name="t.lock")
    (only,) = sources.plan(built, Sources({}, (made.parent,)), python="3.12")
    assert names(only) == ["causal-conv1d"]
    assert sources.plan(built, Sources({}, ()), python="3.11")
    with pytest.raises(OpsError, match=r"causal-conv1d==1\.6\.1 was built by hand"):
        sources.plan(built, Sources({}, ()), python="3.12")


def test_passwords_are_hidden() -> None:
    text = "error at https://me:s3cret@mirror.example/simple/torch/"
    assert sources.without_password(text) == "error at https://***@mirror.example/simple/torch/"


# uv itself


@pytest.fixture
def uv_wheel(tmp_path: Path) -> Path:
    """A wheel of uv as the index has it, with this machine's real program."""
    pin = uv_binary.pinned(wheels.UV_LOCK.read_text())
    path = tmp_path / "uvs" / f"uv-{pin.version}-py3-none-manylinux_2_17_x86_64.manylinux2014_x86_64.whl"
    path.parent.mkdir()
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.write(Path(sys.executable).parent / "uv", f"uv-{pin.version}.data/scripts/uv")
        info = f"uv-{pin.version}.dist-info"
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: uv\nVersion: {pin.version}\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: false\n")
    return path


def uv_lock(wheel: Path) -> str:
    return f"uv=={wheel.name.split('-')[1]} --hash=sha256:{wheels.sha256(wheel)}\n"


def test_uv_comes_from_a_folder(layout: Layout, uv_wheel: Path) -> None:
    program = uv_binary.ensure(layout, uv_lock(uv_wheel), Sources({"default": "none"}, (uv_wheel.parent,)))
    assert program.stat().st_mode & 0o777 == 0o755
    shutil.rmtree(uv_wheel.parent)
    other = f"uv=={program.parent.name[3:]} --hash=sha256:{'0' * 64}\n"
    assert uv_binary.ensure(layout, other, Sources({}, ())) == program


def test_the_controller_brings_uv_when_the_box_has_no_wheel_of_it(layout: Layout, uv_wheel: Path) -> None:
    lock = uv_lock(uv_wheel)
    assert not uv_binary.is_here(layout, lock, Sources({}, ()))
    assert uv_binary.is_here(layout, lock, Sources({}, (uv_wheel.parent,)))
    with pytest.raises(OpsError, match="No folder on this box has the wheel of uv") as caught:
        uv_binary.ensure(layout, lock, Sources({}, ()))
    assert "run deploy.yml" in caught.value.remedy
    uv_binary.ensure(layout, lock, Sources({}, (uv_wheel.parent,)))
    assert uv_binary.is_here(layout, lock, Sources({}, ()))


def test_another_uv_than_the_pinned_is_refused(layout: Layout, uv_wheel: Path) -> None:
    with pytest.raises(OpsError, match="sha256") as caught:
        uv_binary.ensure(layout, wheels.UV_LOCK.read_text(), Sources({}, (uv_wheel.parent,)))
    assert wheels.sha256(uv_wheel) in str(caught.value)
    assert not (layout.root / "tools").exists()


def play(repo: Path, layout: Layout, folder: Path, **urls: str) -> str:
    """Let Ansible make an environment with no wheel of uv on the box; return what it printed.

    This controller's pip has no index of its own and no folder.
    """
    words = {
        "root": str(layout.root),
        "profile": "cpu",
        "lock_file": str(folder / "t.lock"),
        "packages": False,
        "find_links": [str(folder)],
        "index_urls": urls,
    }
    command = [str(Path(sys.executable).with_name("ansible")), "localhost", "-i", "localhost,", "-c", "local"]
    command += ["-e", f"ansible_python_interpreter={sys.executable}"]
    command += ["-m", "dflash_environment", "-a", json.dumps(words)]
    held = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "UV_"))}
    pip = {"PIP_CONFIG_FILE": os.devnull, "PIP_NO_CACHE_DIR": "1", "PIP_RETRIES": "0", "PIP_INDEX_URL": NOWHERE}
    environment = {**held, **pip, "ANSIBLE_CONFIG": str(repo / "ansible.cfg")}
    done = subprocess.run(command, cwd=repo, env=environment, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


@pytest.fixture
def offered(tmp_path: Path, uv_wheel: Path) -> Path:
    """A folder with a lock of one small wheel, and uv's lock."""
    folder = tmp_path / "offered"
    made = wheels.make_wheel(folder, "demo", "1.0", {"demo.py": ""})
    (folder / "t.lock").write_text(wheels.make_lock([made]))
    (folder / "uv.lock").write_text(uv_lock(uv_wheel))
    return folder


def test_uv_comes_from_the_named_index_through_the_controller(
    repo: Path, layout: Layout, offered: Path, uv_wheel: Path
) -> None:
    index = wheels.Index([uv_wheel])
    try:
        said = play(repo, layout, offered, uv=index.url, default="none")
    finally:
        index.close()
    assert "is complete: 1 packages" in said, said
    assert (layout.root / "wheelhouse" / uv_wheel.name).is_file()


def test_uv_that_cannot_be_fetched_is_named_with_its_remedy_and_without_a_password(
    repo: Path, layout: Layout, offered: Path
) -> None:
    said = play(repo, layout, offered, default="http://me:s3cret@127.0.0.1:9/simple")
    assert "uv cannot be fetched on the controller" in said, said
    assert "make wheelhouse" in said
    assert "s3cret" not in said
    assert "its index is turned off" in play(repo, layout, offered, default="none")
    assert not layout.root.exists()


# What uv says


@pytest.mark.parametrize(
    ("words", "remedy"),
    [
        ("error: Hash mismatch for `x==1`\nExpected: sha256:aa\nComputed: sha256:bb", "not the one the lock names"),
        ("error: Failed to fetch: `https://x/simple/`\n cause: dns error", "when the network is back"),
        ("No solution found when resolving dependencies", "a source lacks this version"),
        ("something new", "the environment in use was not touched"),
    ],
)
def test_failures_of_uv_have_a_remedy(words: str, remedy: str) -> None:
    error = uv_install.failure("installing", 2, words.splitlines())
    assert remedy in error.remedy
    assert words.splitlines()[0] in error.message


# The proof's judgement


def judged(**facts: object) -> None:
    lock = lockfile.parse("# profile: cu128\n# python: 3.12\n# platform: x\n# cuda: 12.8\n")
    self_test.judge({"failed": {}, "sys_path": [], **facts}, lock, [Path("/env")], uvm=Path("/nonexistent/nvidia-uvm"))


@pytest.mark.parametrize(
    ("error", "told"),
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
def test_case_51_a_gpu_that_does_not_compute_has_a_named_cause(error: str, told: str) -> None:
    with pytest.raises(OpsError, match=told) as caught:
        judged(gpu_error=error)
    assert caught.value.remedy


def test_a_wrong_sum_names_the_gpu() -> None:
    judged(gpus=[{"index": 0, "ok": True}])
    with pytest.raises(OpsError, match="GPU 1 computes a wrong sum"):
        judged(gpus=[{"index": 0, "ok": True}, {"index": 1, "ok": False}])


def test_a_foreign_site_packages_is_refused() -> None:
    judged(sys_path=["/env/lib/python3.12/site-packages", "/usr/lib/python3.12"])
    with pytest.raises(OpsError, match="/usr/lib/python3/dist-packages"):
        judged(sys_path=["/usr/lib/python3/dist-packages"])


def test_lost_fast_paths_are_told_for_cuda_only() -> None:
    cuda = lockfile.parse("# cuda: 12.8\n")
    facts = {"fast_paths": {"flash-linear-attention": True, "causal-conv1d": False}}
    assert [text.split(" is not")[0] for text in self_test.losses(facts, cuda)] == ["causal-conv1d"]
    assert self_test.losses(facts, lockfile.parse("")) == []


# The machine


def test_case_02_the_python_that_is_missing_is_named_with_where_it_was_looked_for() -> None:
    with pytest.raises(OpsError, match=r"no Python 3\.7 on this box .*looked at:.*/usr/bin/python3"):
        interpreters.find("", ("3.7",))


def test_missing_programs_are_told_in_one_message(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    python = interpreters.find("", ("3.10", "3.11", "3.12", "3.13"))
    monkeypatch.setattr(interpreters, "SYSTEM_PATH", str(tmp_path))
    monkeypatch.setattr(interpreters.os, "geteuid", lambda: 1000)
    missing = interpreters.missing_packages(python)
    assert missing[:2] == ["tmux", "g++"]
    with pytest.raises(OpsError, match=r"Missing on this box: tmux, g\+\+") as caught:
        interpreters.require_installable(missing)
    assert "apt-get install -y tmux g++" in caught.value.remedy
