"""Commands and files through an agent on this machine, over the same pipes but without ssh."""
from __future__ import annotations

import json
import os
import resource
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest
from dflash_controller import pct_channel
from dflash_controller.pct_channel import AGENT_COMMAND, Channel, ChannelLost, ChannelRefused, ChannelSilent, NoPython
from dflash_ops.core.errors import OpsError
from dflash_ops.proxmox import pct_agent

COMMAND = [argument.encode() for argument in AGENT_COMMAND]


@pytest.fixture
def channel(tmp_path: Path) -> Iterator[Channel]:
    """An open channel."""
    opened = Channel.open(COMMAND, timeout_s=20, env={"PATH": os.environ["PATH"], "HOME": str(tmp_path)})
    yield opened
    opened.close()


def leftovers(folder: Path) -> list[str]:
    """Return the temporary files in a folder."""
    return [path.name for path in folder.iterdir() if ".pct-part-" in path.name or path.name.endswith(".part")]


def test_stdout_stderr_and_status_are_separate(channel: Channel) -> None:
    assert channel.run("echo out; echo err >&2; exit 7", None) == (7, b"out\n", b"err\n")


def test_many_commands_use_one_process(channel: Channel) -> None:
    parents = {channel.run("echo $PPID", None)[1] for _ in range(3)}
    assert len(parents) == 1


def test_binary_input_arrives_unchanged(channel: Channel) -> None:
    data = bytes(range(256)) * 5000
    assert channel.run("cat", data) == (0, data, b"")


def test_empty_input_ends_at_once(channel: Channel) -> None:
    assert channel.run("cat; echo done", None)[1] == b"done\n"
    assert channel.run("cat; echo done", b"")[1] == b"done\n"


def test_unread_input_does_not_block(channel: Channel) -> None:
    assert channel.run("exit 4", b"x" * 3_000_000)[0] == 4
    assert channel.run("echo next", None)[1] == b"next\n"


def test_output_that_is_not_text_arrives_unchanged(channel: Channel) -> None:
    assert channel.run("printf '\\377' >&2; printf '\\376'", None) == (0, b"\xfe", b"\xff")


def test_a_signal_is_reported_in_the_status(channel: Channel) -> None:
    assert channel.run("kill -9 $$", None)[0] == 128 + 9


def test_a_background_child_that_keeps_the_pipe_open_does_not_delay_the_task(channel: Channel) -> None:
    status, out, _err = channel.run("sleep 60 & echo $!", None)
    assert status == 0
    assert Path("/proc", out.decode().strip(), "cmdline").read_bytes()  # it was not waited for
    assert channel.run("echo next", None)[1] == b"next\n"
    os.kill(int(out), signal.SIGKILL)


@pytest.mark.parametrize(
    "name", ["plain", "a space", "a'quote", 'a"double', "-dash", "ä", "new\nline", "x" * 250, "\U0001f600" * 62]
)
def test_special_characters_in_paths_work(channel: Channel, tmp_path: Path, name: str) -> None:
    source, target, back = tmp_path / "source", tmp_path / name, tmp_path / "back"
    source.write_bytes(os.urandom(700_000))
    channel.put(source, str(target))
    channel.get(str(target), back)
    assert back.read_bytes() == source.read_bytes()
    assert leftovers(tmp_path) == []


def test_an_empty_file_is_copied(channel: Channel, tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    channel.put(tmp_path / "empty", str(tmp_path / "copy"))
    assert (tmp_path / "copy").read_bytes() == b""
    channel.get(str(tmp_path / "copy"), tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == b""


@pytest.mark.parametrize("mode", [0o600, 0o644, 0o755])
def test_a_new_file_has_the_mode_of_its_source(channel: Channel, tmp_path: Path, mode: int) -> None:
    source = tmp_path / "source"
    source.write_text("x", encoding="utf-8")
    source.chmod(mode)
    channel.put(source, str(tmp_path / "copy"))
    assert (tmp_path / "copy").stat().st_mode & 0o7777 == mode


def test_a_replaced_file_keeps_its_mode_and_a_link_stays_a_link(channel: Channel, tmp_path: Path) -> None:
    source, target, link = tmp_path / "source", tmp_path / "target", tmp_path / "link"
    source.write_text("new", encoding="utf-8")
    target.write_text("old", encoding="utf-8")
    target.chmod(0o640)
    link.symlink_to(target)
    channel.put(source, str(link))
    assert link.is_symlink()
    assert (target.read_text(encoding="utf-8"), target.stat().st_mode & 0o7777) == ("new", 0o640)


def test_invalid_targets_are_named_and_the_channel_stays_usable(channel: Channel, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(b"x" * 2_000_000)
    bad = ((tmp_path, "is a folder"), (tmp_path / "no/where", "create it first"), ("/dev/null", "not a regular file"))
    for target, message in bad:
        with pytest.raises(OpsError, match=message):
            channel.put(source, str(target))
    with pytest.raises(OpsError, match="does not exist in the container"):
        channel.get(str(tmp_path / "nothing"), tmp_path / "back")
    assert leftovers(tmp_path) == []
    assert channel.run("echo next", None)[1] == b"next\n"


def test_an_interrupted_copy_leaves_the_old_file(channel: Channel, tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    with source.open("wb") as stream:
        stream.truncate(2 << 30)  # sparse: needs no disk space
    target.write_text("old", encoding="utf-8")

    def kill_once_it_writes() -> None:
        while not leftovers(tmp_path):
            time.sleep(0.01)
        assert channel.process is not None
        channel.process.kill()

    killer = threading.Thread(target=kill_once_it_writes)
    killer.start()
    with pytest.raises(ChannelLost):
        channel.put(source, str(target))
    killer.join()
    assert target.read_text(encoding="utf-8") == "old"
    assert leftovers(tmp_path) != []

    second = Channel.open(COMMAND, timeout_s=20)
    source.write_text("new", encoding="utf-8")
    second.put(source, str(target))
    second.close()
    assert target.read_text(encoding="utf-8") == "new"
    assert leftovers(tmp_path) == []


def test_memory_does_not_grow_with_the_file(channel: Channel, tmp_path: Path) -> None:
    big = tmp_path / "big"
    with big.open("wb") as stream:
        stream.truncate(300 << 20)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    channel.put(big, str(tmp_path / "copy"))
    channel.get(str(tmp_path / "copy"), tmp_path / "back")
    grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert (tmp_path / "back").stat().st_size == big.stat().st_size
    assert grown_kib < 32 << 10
    for path in (big, tmp_path / "copy", tmp_path / "back"):
        path.unlink()


@pytest.mark.parametrize("command", ["echo " + "x" * 200_000, "echo a\0b"])
def test_a_command_that_no_shell_can_run_reports_the_reason(channel: Channel, command: str) -> None:
    status, out, err = channel.run(command, b"unread input")
    assert (status, out) == (126, b"")
    assert err.startswith(b"/bin/sh could not be started: ")
    assert channel.run("echo next", None)[1] == b"next\n"


def test_output_is_complete_when_the_controller_is_slow() -> None:
    source = Path(pct_agent.__file__).read_bytes()
    agent = subprocess.Popen(COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
    assert agent.stdin and agent.stdout
    agent.stdin.write(b"%d\n%s" % (len(source), source))
    request = {"service": "run", "command": "head -c 100000 /dev/zero", "has_input": False}
    pct_agent.write_frame(agent.stdin, b"R", json.dumps(request).encode())
    pct_agent.write_frame(agent.stdin, b"E")
    time.sleep(pct_agent.LATE_OUTPUT_S + 1)
    pct_agent.read_exactly(agent.stdout, len(pct_agent.GREETING))
    size, letter = 0, b"o"
    while letter == b"o":
        letter, data = pct_agent.read_frame(agent.stdout)
        size += len(data) if letter == b"o" else 0
    assert size == 100_000
    agent.stdin.close()
    assert agent.wait(timeout=20) == 0


GARBLE = """
import os
while data := os.read(0, 65536):
    data = data.replace(b"original", b"modified")
    while data:
        data = data[os.write(1, data):]
"""


@pytest.fixture
def garbled(tmp_path: Path) -> Iterator[Channel]:
    """A channel that changes bytes of a file in both directions."""
    garble = f"{sys.executable} -c {shlex.quote(GARBLE)}"
    command = f"{garble} | {shlex.join(AGENT_COMMAND)} | {garble}"
    opened = Channel.open([b"/bin/sh", b"-c", command.encode()], timeout_s=20)
    yield opened
    opened.close()


def test_a_corrupted_copy_is_refused_and_replaces_nothing(garbled: Channel, tmp_path: Path) -> None:
    (tmp_path / "source").write_bytes(b"original\n")
    (tmp_path / "target").write_bytes(b"old\n")
    with pytest.raises(OpsError, match=r"the checksum of .*target differs after the transfer; nothing was changed"):
        garbled.put(tmp_path / "source", str(tmp_path / "target"))
    with pytest.raises(OpsError, match=r"Could not fetch .*source: its checksum differs .*Remedy: Fetch it again"):
        garbled.get(str(tmp_path / "source"), tmp_path / "target")
    assert (tmp_path / "target").read_bytes() == b"old\n"
    assert leftovers(tmp_path) == []


def test_a_file_larger_than_the_free_space_is_refused(tmp_path: Path) -> None:
    assert f"needs {1 << 60} bytes, but only" in pct_agent.check_target(tmp_path / "target", 1 << 60)
    assert pct_agent.check_target(tmp_path / "target", 1) == ""


def test_a_copy_without_space_is_refused_before_it_is_sent_completely(
    channel: Channel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "source"
    with source.open("wb") as stream:
        stream.truncate(2 << 30)
    read: list[int] = []

    def counted(stream: IO[bytes], source: Path) -> bytes:
        piece = read_piece(stream, source)
        read.append(len(piece))
        return piece

    read_piece = pct_channel.read_piece
    monkeypatch.setattr(pct_channel, "read_piece", counted)
    with pytest.raises(OpsError, match=rf"/proc/target needs {2 << 30} bytes, but only 0 are free in /proc"):
        channel.put(source, "/proc/target")
    assert sum(read) < 64 << 20
    assert channel.run("echo next", None)[1] == b"next\n"


def test_an_unreadable_source_is_named_and_leaves_no_file(channel: Channel, tmp_path: Path) -> None:
    # this file can be opened but not read
    with pytest.raises(OpsError, match="Could not read /proc/self/mem on the controller: Input/output error"):
        channel.put(Path("/proc/self/mem"), str(tmp_path / "copy"))
    assert channel.closed
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_on_the_controller_is_named(channel: Channel, tmp_path: Path) -> None:
    (tmp_path / "source").write_bytes(b"x" * 2_000_000)
    # a size limit of this process has the same effect as a full file system
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (500_000, hard))
    try:
        with pytest.raises(OpsError, match=r"Could not write .*/back on the controller: File too large"):
            channel.get(str(tmp_path / "source"), tmp_path / "back")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)
    assert channel.closed
    assert leftovers(tmp_path) == []


def test_a_refused_connection_carries_its_output() -> None:
    with pytest.raises(ChannelRefused, match="not running") as refusal:
        Channel.open([b"/bin/sh", b"-c", b"echo 'container 200 not running!' >&2; exit 3"], timeout_s=20)
    assert refusal.value.status == 3


def test_a_silent_agent_times_out() -> None:
    start = time.monotonic()
    with pytest.raises(ChannelSilent):
        Channel.open([b"/bin/sleep", b"60"], timeout_s=0.5)
    assert time.monotonic() - start < 30


def test_output_of_the_login_is_skipped() -> None:
    shell = b"printf 'Welcome\\n\\000to pve\\n'; exec \"$@\""
    channel = Channel.open([b"/bin/sh", b"-c", shell, b"sh", *COMMAND], timeout_s=20)
    assert channel.run("echo ok", None)[1] == b"ok\n"
    channel.close()


def test_a_container_without_python_is_recognized(tmp_path: Path) -> None:
    with pytest.raises(NoPython):
        Channel.open(COMMAND, timeout_s=20, env={"PATH": str(tmp_path)})


def test_a_closed_channel_leaves_no_process(channel: Channel) -> None:
    agent = int(channel.run("echo $PPID", None)[1])
    process = channel.process
    channel.close()
    assert process is not None
    assert process.poll() is not None
    assert not Path("/proc", str(agent)).exists()
