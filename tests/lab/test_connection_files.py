"""Files from the controller to a container and back."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from ansible.errors import AnsibleConnectionFailure, AnsibleError, AnsibleFileNotFound
from connection_helpers import checksum, temporary_files
from dflash_lab.lab import Lab


@pytest.mark.parametrize("container", [200, 201])
def test_owner_mode_and_checksum_are_correct_with_umask_077(lab: Lab, play: Any, tmp_path: Path,
                                                                  container: int) -> None:
    secret, script = os.urandom(5000), b"#!/bin/sh\nexit 0\n" * 200
    (tmp_path / "secret").write_bytes(secret)
    (tmp_path / "script").write_bytes(script)
    (tmp_path / "script").chmod(0o755)
    before = os.umask(0o077)
    try:
        done = play("""
- copy: {src: secret, dest: /root/copied-secret, mode: "0600"}
- copy: {src: script, dest: /usr/local/bin/copied-script, mode: "0755"}
- copy: {src: script, dest: /root/copied-kept, mode: preserve}
- copy: {content: x, dest: /root/copied-games, owner: games, group: games, mode: "0640"}
- copy: {content: y, dest: /root/copied-games}
""", pct_vmid=container)
    finally:
        os.umask(before)
    assert done.returncode == 0, done.stdout
    shown = lab.inside(container, "stat", "-c", "%u:%g %a", "/root/copied-secret", "/usr/local/bin/copied-script",
                       "/root/copied-kept", "/root/copied-games").stdout.splitlines()
    assert shown == ["0:0 600", "0:0 755", "0:0 755", "5:60 640"]
    sums = lab.inside(container, "sha256sum", "/root/copied-secret", "/usr/local/bin/copied-script").stdout.split()
    assert sums[::2] == [hashlib.sha256(data).hexdigest() for data in (secret, script)]


def test_a_folder_with_empty_files_is_copied(lab: Lab, play: Any, tmp_path: Path) -> None:
    tree = tmp_path / "tree" / "package"
    tree.mkdir(parents=True)
    (tree / "__init__.py").touch()
    (tree / "empty.toml").touch()
    done = play('- copy: {src: tree/, dest: /root/empty-files/, mode: "0644"}')
    assert done.returncode == 0, done.stdout
    for name in ("__init__.py", "empty.toml"):
        assert lab.inside(200, "stat", "-c", "%s %u", f"/root/empty-files/package/{name}").stdout == "0 0\n"


@pytest.mark.parametrize("name", ["with a space", "it's", 'a "quoted" one', "$HOME `id`;x", "ünïcode", "-n"])
def test_special_characters_in_paths_work_in_both_directions(lab: Lab, connect: Any, tmp_path: Path, name: str) -> None:
    data = os.urandom(100_000)
    (tmp_path / name).write_bytes(data)
    connection = connect()
    connection.put_file(str(tmp_path / name), f"/root/{name}")
    connection.fetch_file(f"/root/{name}", str(tmp_path / "back"))
    assert (tmp_path / "back").read_bytes() == data
    assert lab.inside(200, "stat", "-c", "%u:%g", f"/root/{name}").stdout == "0:0\n"


def test_a_missing_source_is_named_and_leaves_no_file(connect: Any, tmp_path: Path) -> None:
    connection = connect()
    agent = connection.exec_command("echo $PPID")
    with pytest.raises(AnsibleFileNotFound, match=f"{tmp_path}/nothing is not a file on the controller"):
        connection.put_file(str(tmp_path / "nothing"), "/root/put")
    for source, message in (("/root/nothing", "does not exist"), ("/root", "is not a regular file")):
        with pytest.raises(AnsibleError, match=f"Could not fetch a file: {source} {message} in the container"):
            connection.fetch_file(source, str(tmp_path / "back"))
    assert connection.exec_command("test ! -e /root/put && echo $PPID") == agent
    assert list(tmp_path.iterdir()) == []


def test_a_file_larger_than_the_free_space_is_refused(lab: Lab, connect: Any, tmp_path: Path) -> None:
    with (tmp_path / "big").open("wb") as stream:
        stream.truncate(4 << 30)
    connection = connect(pct_vmid=201)
    connection.exec_command("mkdir -p /mnt/small && mount -t tmpfs -o size=1m tmpfs /mnt/small")
    try:
        with pytest.raises(AnsibleError, match=r"needs 4294967296 bytes, but only \d+ are free in /mnt/small"):
            connection.put_file(str(tmp_path / "big"), "/mnt/small/big")
        assert connection.exec_command("ls -A /mnt/small") == (0, b"", b"")
    finally:
        connection.exec_command("umount /mnt/small")


BIG = """
import resource, sys, time
sys.path[:0] = [{tests!r}]
from conftest import login_variables
from ansible.playbook.play_context import PlayContext
from ansible.plugins.loader import connection_loader, init_plugin_loader
from dflash_lab.lab import Lab
from dflash_lab.layout import layout_from_environment
init_plugin_loader()
context = PlayContext()
context.remote_addr = "127.0.0.1"
connection = connection_loader.get("pct", context)
connection.set_options(var_options=login_variables(Lab(layout_from_environment())))
connection.exec_command("true")
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
connection.put_file({source!r}, "/root/big")
connection.fetch_file("/root/big", {back!r})
connection.close()
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_a_file_of_2_gib_needs_bounded_memory(lab: Lab, tmp_path: Path) -> None:
    source, back = tmp_path / "big", tmp_path / "back"
    with source.open("wb") as stream:
        stream.truncate(2 << 30)
        for at in range(0, 2048, 100):  # sparse, with different content at several offsets
            stream.seek(at << 20)
            stream.write(os.urandom(4096))
    code = BIG.format(tests=str(Path(__file__).parent), source=str(source), back=str(back))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    try:
        assert done.returncode == 0, done.stderr
        growth_kib = int(done.stdout)
        assert growth_kib < 32 << 10
        expected = checksum(source)
        assert lab.inside(200, "sha256sum", "/root/big").stdout.split()[0] == expected
        assert checksum(back) == expected
    finally:
        lab.inside(200, "rm", "-f", "/root/big")
        for path in (source, back):
            path.unlink(missing_ok=True)


def test_a_lost_connection_leaves_the_old_file(lab: Lab, connect: Any, tmp_path: Path) -> None:
    source = tmp_path / "source"
    with source.open("wb") as stream:
        stream.truncate(4 << 30)
    connection = connect()
    connection.exec_command("echo old > /root/target")

    def kill_ssh_once_it_writes() -> None:
        while not temporary_files(lab):
            time.sleep(0.02)
        connection._channel.process.kill()

    killer = threading.Thread(target=kill_ssh_once_it_writes)
    killer.start()
    with pytest.raises(AnsibleConnectionFailure, match=r"was lost while a command was running.*status: running"):
        connection.put_file(str(source), "/root/target")
    killer.join()
    assert lab.inside(200, "cat", "/root/target").stdout == "old\n"
    end = time.monotonic() + 20
    while temporary_files(lab) and time.monotonic() < end:
        time.sleep(0.1)
    assert temporary_files(lab) == []
    source.write_text("new\n", encoding="utf-8")
    connection.put_file(str(source), "/root/target")
    assert lab.inside(200, "cat", "/root/target").stdout == "new\n"
