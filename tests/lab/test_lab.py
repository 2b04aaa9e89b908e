"""The lab leaves nothing behind, also after a failure during its start."""
from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from dflash_lab import host, leftovers, network
from dflash_lab.lab import Lab
from dflash_lab.layout import BRIDGE, NFT_TABLE, Layout
from dflash_lab.shell import LabError, run


def traces(layout: Layout) -> dict[str, list[str]]:
    """Return the remains of a lab on this machine."""
    state = str(layout.state)
    processes = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and entry.name != str(os.getpid()):
            try:
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            if state in command:
                processes.append(command)
    return {
        "processes": processes,
        "mounts": [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if state in line],
        "links": [line for line in run("ip", "-brief", "link").stdout.splitlines() if BRIDGE in line],
        "tables": [line for line in run("nft", "list", "tables").stdout.splitlines() if NFT_TABLE in line],
        "files": [path.name for path in layout.state.iterdir() if not path.name.startswith("base")],
    }


@pytest.fixture
def second(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Lab:
    """A second lab in parallel with the shared one: another folder and port, the same root file systems."""
    state = tmp_path_factory.mktemp("lab")
    for name in ("base", "base-shifted"):
        (state / name).symlink_to(lab.layout.state / name)
    return Lab(Layout(state=state, port=lab.layout.port + 1))


def test_up_and_down_leave_nothing(second: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    share_the_network(monkeypatch)
    second.up([201])
    assert second.pct("status", "201").stdout == "status: running\n"
    second.down()
    assert {name: found for name, found in traces(second.layout).items() if found and name not in SHARED} == {}


def test_a_failure_during_up_leaves_nothing(second: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    share_the_network(monkeypatch)
    with pytest.raises(LabError, match="already exists"):
        second.up([201, 201])
    assert {name: found for name, found in traces(second.layout).items() if found and name not in SHARED} == {}


def test_down_cleans_up_after_a_killed_host(second: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    share_the_network(monkeypatch)
    second.up([201])
    found = host.pid(second.layout)
    assert found
    os.kill(found, signal.SIGKILL)
    second.down()
    assert {name: found for name, found in traces(second.layout).items() if found and name not in SHARED} == {}


def test_down_ends_processes_of_a_killed_host(second: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    share_the_network(monkeypatch)
    second.up([201])
    login = ["ssh", "-f", "-n", "-p", str(second.layout.port), "-i", str(second.layout.key), "-o",
             f"UserKnownHostsFile={second.layout.known_hosts}", "root@127.0.0.1"]
    for command in ("/usr/sbin/pct exec 201 -- sleep 600", "setsid sleep 600 </dev/null >/dev/null 2>&1 &"):
        subprocess.run([*login, command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
    found = host.pid(second.layout)
    assert found
    assert len(leftovers.of_host(second.layout)) > 1
    os.kill(found, signal.SIGKILL)
    second.down()
    assert leftovers.of_host(second.layout) == []


def test_purge_ends_a_build_whose_parent_was_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    share_the_network(monkeypatch)
    layout = Layout(state=tmp_path / "lab")
    draft = layout.state / "base.draft"
    draft.mkdir(parents=True)
    script = tmp_path / "debootstrap"
    script.write_text("trap '' TERM; while sleep 0.1; do echo x >> \"$1/file\"; done\n", encoding="utf-8")
    builder = subprocess.Popen(["/bin/sh", str(script), str(draft)], stderr=subprocess.DEVNULL)
    while not (draft / "file").exists():
        time.sleep(0.02)
    Lab(layout).purge()
    assert builder.wait(timeout=10) == -signal.SIGKILL
    assert not layout.state.exists()


# they belong to the shared lab while it is running
SHARED = ("links", "tables")


def share_the_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use the bridge and the rule of the shared lab."""
    monkeypatch.setattr(network, "up", lambda layout: None)
    monkeypatch.setattr(network, "down", lambda layout: None)
