"""The connection against a real sshd, a pct with the real one's habits, and real containers."""
from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible.errors import AnsibleConnectionFailure, AnsibleError, AnsibleFileNotFound
from ansible.plugins.loader import become_loader, get_shell_plugin
from conftest import close_logins
from dflash_lab import host
from dflash_lab.lab import LEAKING, Lab

METHODS = ("pct", "lxc-attach")


# ---- how much it costs -----------------------------------------------------------------------------------------

TASKS = """
- command: hostname
- copy: {content: "a secret\\n", dest: /root/counted, mode: "0600"}
- copy: {content: "a secret\\n", dest: /root/counted, mode: "0600"}
- template: {src: template.j2, dest: /root/counted2, mode: "0644"}
- script: ./script.sh
- command: "echo {{ item }}"
  loop: [1, 2, 3]
- fetch: {src: /root/counted, dest: fetched/, flat: true}
- command: id -un
  become: true
  become_user: nobody
  register: who
- assert: {that: who.stdout == 'nobody'}
"""


@pytest.mark.parametrize(("persist", "wanted"), [(0, 8), (60, 1)])
def test_a_task_costs_one_pct_call_at_most_and_a_play_one_login(
    lab: Lab, play: Any, tmp_path: Path, persist: int, wanted: int
) -> None:
    (tmp_path / "template.j2").write_text("{{ inventory_hostname }}\n", encoding="utf-8")
    (tmp_path / "script.sh").write_text("#!/bin/sh\necho hi\n", encoding="utf-8")
    calls, logins = len(lab.pct_calls()), lab.logins()
    done = play(TASKS, env={"ANSIBLE_SSH_CONTROL_PATH_DIR": str(tmp_path / "cp")}, pct_persist=persist)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "failed=0" in done.stdout
    assert len(lab.pct_calls()) - calls == wanted
    assert lab.logins() - logins == 1
    close_logins(tmp_path / "cp")


# ---- the way that stays open -----------------------------------------------------------------------------------


def sockets(folder: Path) -> list[Path]:
    """Return where open ways wait."""
    return list(folder.glob("pct-*"))


def until(condition: Any, seconds: float = 20) -> None:
    """Wait until something holds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come true"
        time.sleep(0.05)


def test_the_next_task_takes_the_open_way_and_an_idle_one_ends(lab: Lab, connect: Any, tmp_path: Path) -> None:
    options = {"pct_persist": 2, "ansible_control_path_dir": str(tmp_path)}
    seen = set()
    calls = len(lab.pct_calls())
    for _ in range(3):
        connection = connect(**options)
        seen.add(connection.exec_command("echo $PPID")[1])
        connection.close()
    assert len(seen) == 1
    assert len(lab.pct_calls()) - calls == 1
    agent = seen.pop().decode().strip()
    until(lambda: not sockets(tmp_path))
    until(lambda: lab.inside(200, "test", "-d", f"/proc/{agent}", check=False).returncode != 0)


def test_without_persist_the_open_way_is_neither_taken_nor_left(lab: Lab, connect: Any, tmp_path: Path) -> None:
    options = {"ansible_control_path_dir": str(tmp_path)}
    kept, own = connect(pct_persist=30, **options), connect(pct_persist=0, **options)
    agents = []
    for connection in (kept, own):
        agents.append(connection.exec_command("echo $PPID")[1].decode().strip())
        connection.close()
    assert agents[0] != agents[1]
    assert len(sockets(tmp_path)) == 1
    until(lambda: lab.inside(200, "test", "-d", f"/proc/{agents[1]}", check=False).returncode != 0)
    assert connect(pct_persist=30, **options).exec_command("echo $PPID")[1].decode().strip() == agents[0]


def test_those_who_come_at_once_share_the_first_login(lab: Lab, connect: Any, tmp_path: Path) -> None:
    logins = lab.logins()
    found: list[tuple[int, bytes, bytes]] = []
    ways = [connect(ansible_control_path_dir=str(tmp_path)) for _ in range(4)]
    tasks = [threading.Thread(target=lambda way=way: found.append(way.exec_command("echo in"))) for way in ways]
    for task in tasks:
        task.start()
    for task in tasks:
        task.join()
    assert found == [(0, b"in\n", b"")] * 4
    assert lab.logins() - logins == 1
    assert not list(tmp_path.glob("*.first"))


def test_two_at_once_do_not_share(connect: Any, tmp_path: Path) -> None:
    options = {"pct_persist": 5, "ansible_control_path_dir": str(tmp_path)}
    first, second = connect(**options), connect(**options)
    first.exec_command("true")
    first.close()
    first = connect(**options)
    agents = [connection.exec_command("echo $PPID")[1] for connection in (first, second)]
    assert agents[0] != agents[1]


def test_an_open_way_is_for_the_same_login_only(connect: Any, tmp_path: Path) -> None:
    options = {"pct_persist": 30, "ansible_control_path_dir": str(tmp_path)}
    connection = connect(**options)
    connection.exec_command("true")
    connection.close()
    assert len(sockets(tmp_path)) == 1
    with pytest.raises(AnsibleConnectionFailure, match="is not root"):
        connect(ansible_user="operator", **options).exec_command("true")


def test_a_way_in_use_by_a_task_that_dies_is_not_lent_again(lab: Lab, connect: Any, tmp_path: Path) -> None:
    options = {"pct_persist": 30, "ansible_control_path_dir": str(tmp_path)}
    connection = connect(**options)
    connection.exec_command("true")
    connection.close()
    child = os.fork()
    if child == 0:
        connect(**options).exec_command("touch /run/began; sleep 300")
        os._exit(0)
    until(lambda: lab.inside(200, "test", "-e", "/run/began", check=False).returncode == 0)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    until(lambda: not sockets(tmp_path))
    assert connect(**options).exec_command("echo clean") == (0, b"clean\n", b"")


def test_case_05_the_open_way_of_a_restarted_container_is_not_used(lab: Lab, connect: Any, tmp_path: Path) -> None:
    options = {"pct_persist": 60, "ansible_control_path_dir": str(tmp_path), "pct_vmid": 201}
    connection = connect(**options)
    connection.exec_command("true")
    connection.close()
    lab.pct("stop", "201")
    try:
        with pytest.raises(AnsibleConnectionFailure, match="is not running"):
            connect(**options).exec_command("true")
    finally:
        lab.pct("start", "201")
        lab.wait_ready(201)
    assert connect(**options).exec_command("echo new") == (0, b"new\n", b"")


def test_reset_forgets_the_open_way(connect: Any, tmp_path: Path) -> None:
    options = {"pct_persist": 60, "ansible_control_path_dir": str(tmp_path)}
    connection = connect(**options)
    before = connection.exec_command("echo $PPID")[1]
    connection.close()
    connect(**options).reset()
    until(lambda: not sockets(tmp_path))
    assert connect(**options).exec_command("echo $PPID")[1] != before


def test_ansible_doc_shows_the_plugin(lab: Lab) -> None:
    command = [str(Path(sys.executable).with_name("ansible-doc")), "-t", "connection", "pct"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for option in ("pct_vmid", "pct_method", "private_key_file", "ssh_common_args"):
        assert option in done.stdout


# ---- what a command sees ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
def test_case_01_nothing_of_the_host_leaks_in(lab: Lab, connect: Any, method: str) -> None:
    lab.set_host_environment(LEAKING | {"LANG": "xx_XX", "PYTHONHOME": "/nowhere"})
    try:
        # the way in by hand shows that these would come along
        shown = subprocess.run(["ssh", "-p", str(lab.layout.port), "-i", lab.layout.key, "-o",
                                f"UserKnownHostsFile={lab.layout.known_hosts}", "root@127.0.0.1",
                                "/usr/sbin/pct exec 200 -- env"], capture_output=True, text=True, check=False).stdout
        assert "SSL_CERT_FILE=/nope" in shown
        status, out, _err = connect(pct_method=method).exec_command("env")
    finally:
        lab.set_host_environment({})
    assert status == 0
    names = {line.partition("=")[0] for line in out.decode().splitlines()}
    assert names <= {"PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "PWD", "_"}
    assert b"/usr/local/bin" in out


def test_case_02_a_python_in_usr_local_bin_is_found(lab: Lab, connect: Any) -> None:
    lab.inside(201, "sh", "-c", "cd /usr/local/bin; mv /usr/bin/python3 .; ln -s /usr/bin/python3.11 python3.11;"
               " cp /usr/bin/env only-here")
    try:
        status, out, _err = connect(pct_vmid=201).exec_command("command -v python3; command -v only-here")
    finally:
        lab.inside(201, "sh", "-c", "cd /usr/local/bin; mv python3 /usr/bin/; rm python3.11 only-here")
    assert (status, out) == (0, b"/usr/local/bin/python3\n/usr/local/bin/only-here\n")


def test_without_python_commands_work_and_copies_say_why(lab: Lab, connect: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x", encoding="utf-8")
    lab.inside(201, "mv", "/usr/bin/python3", "/usr/bin/python3.hidden")
    try:
        connection = connect(pct_vmid=201)
        assert connection.exec_command("echo in; echo to >&2; exit 3") == (3, b"in\n", b"to\n")
        with pytest.raises(AnsibleError, match="has no python3, and copies need it"):
            connection.put_file(str(tmp_path / "file"), "/root/file")
    finally:
        lab.inside(201, "mv", "/usr/bin/python3.hidden", "/usr/bin/python3")


@pytest.fixture(params=[True, False], ids=["python", "no-python"])
def either(lab: Lab, connect: Any, request: pytest.FixtureRequest) -> Iterator[Any]:
    """Container 201, with the agent and without python3."""
    if request.param:
        yield connect(pct_vmid=201)
        return
    lab.inside(201, "mv", "/usr/bin/python3", "/usr/bin/python3.hidden")
    try:
        yield connect(pct_vmid=201)
    finally:
        lab.inside(201, "mv", "/usr/bin/python3.hidden", "/usr/bin/python3")


def test_what_commands_make_does_not_follow_the_umask_of_the_login(lab: Lab, either: Any) -> None:
    lab.layout.host.joinpath("root/.lab_environment").write_text("umask 077\n", encoding="utf-8")
    try:
        made = "umask; rm -f /root/made; touch /root/made; stat -c %a /root/made; pwd"
        assert either.exec_command(made) == (0, b"0022\n644\n/root\n", b"")
    finally:
        lab.set_host_environment({})


def test_the_mark_of_become_is_no_part_of_the_output(either: Any) -> None:
    become = become_loader.get("sudo")
    become.set_options(direct={"become_user": "games"})
    either.set_become_plugin(become)
    command = become.build_become_command("id -un", get_shell_plugin(executable="/bin/sh"))
    assert either.exec_command(command)[:2] == (0, b"games\n")
    assert either.exec_command(command, sudoable=False)[1].startswith(become.success.encode())


@pytest.mark.parametrize("method", METHODS)
def test_without_python_a_commands_own_words_are_no_failure_of_the_way(lab: Lab, connect: Any, method: str) -> None:
    lab.inside(201, "mv", "/usr/bin/python3", "/usr/bin/python3.hidden")
    try:
        connection = connect(pct_vmid=201, pct_method=method)
        for words in ("E: Connection timed out", "sshd.service is not running", "sudo: a password is required"):
            found = connection.exec_command(f"echo '{words}' >&2; exit 3")
            assert found == (3, b"", f"{words}\n".encode())
        assert connection.exec_command("cat; exit 255", in_data=b"x") == (255, b"x", b"")
        lab.pct("stop", "201")
        with pytest.raises(AnsibleConnectionFailure, match=r"Container 201 on 127.0.0.1 is not running"):
            connection.exec_command("true")
    finally:
        lab.pct("start", "201", check=False)
        lab.wait_ready(201)
        lab.inside(201, "mv", "/usr/bin/python3.hidden", "/usr/bin/python3")


def test_case_12_bytes_that_are_no_text_become_marks(connect: Any) -> None:
    status, out, err = connect().exec_command("printf 'a\\377' >&2; printf 'b\\376'; exit 5")
    assert (status, out.decode(), err.decode()) == (5, "b\ufffd", "a\ufffd")


def test_case_12_a_play_survives_bytes_that_are_no_text(play: Any) -> None:
    done = play("- raw: printf 'a\\377' >&2; exit 5")
    assert "failed=1" in done.stdout
    assert "rc: 5" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr


# ---- files -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("container", [200, 201])
def test_case_08_owner_mode_and_checksum_are_right_with_umask_077(lab: Lab, play: Any, tmp_path: Path,
                                                                  container: int) -> None:
    secret, script = os.urandom(5000), b"#!/bin/sh\nexit 0\n" * 200
    (tmp_path / "secret").write_bytes(secret)
    (tmp_path / "script").write_bytes(script)
    (tmp_path / "script").chmod(0o755)
    before = os.umask(0o077)
    try:
        done = play("""
- copy: {src: secret, dest: /root/case08-secret, mode: "0600"}
- copy: {src: script, dest: /usr/local/bin/case08-script, mode: "0755"}
- copy: {src: script, dest: /root/case08-kept, mode: preserve}
- copy: {content: x, dest: /root/case08-games, owner: games, group: games, mode: "0640"}
- copy: {content: y, dest: /root/case08-games}
""", pct_vmid=container)
    finally:
        os.umask(before)
    assert done.returncode == 0, done.stdout
    shown = lab.inside(container, "stat", "-c", "%u:%g %a", "/root/case08-secret", "/usr/local/bin/case08-script",
                       "/root/case08-kept", "/root/case08-games").stdout.splitlines()
    assert shown == ["0:0 600", "0:0 755", "0:0 755", "5:60 640"]
    sums = lab.inside(container, "sha256sum", "/root/case08-secret", "/usr/local/bin/case08-script").stdout.split()
    assert sums[::2] == [hashlib.sha256(data).hexdigest() for data in (secret, script)]


def test_case_09_a_tree_with_empty_files_arrives(lab: Lab, play: Any, tmp_path: Path) -> None:
    tree = tmp_path / "tree" / "package"
    tree.mkdir(parents=True)
    (tree / "__init__.py").touch()
    (tree / "empty.toml").touch()
    done = play('- copy: {src: tree/, dest: /root/case09/, mode: "0644"}')
    assert done.returncode == 0, done.stdout
    for name in ("__init__.py", "empty.toml"):
        assert lab.inside(200, "stat", "-c", "%s %u", f"/root/case09/package/{name}").stdout == "0 0\n"


@pytest.mark.parametrize("name", ["with a space", "it's", 'a "quoted" one', "$HOME `id`;x", "ünïcode", "-n"])
def test_case_12_odd_paths_there_and_back(lab: Lab, connect: Any, tmp_path: Path, name: str) -> None:
    data = os.urandom(100_000)
    (tmp_path / name).write_bytes(data)
    connection = connect()
    connection.put_file(str(tmp_path / name), f"/root/{name}")
    connection.fetch_file(f"/root/{name}", str(tmp_path / "back"))
    assert (tmp_path / "back").read_bytes() == data
    assert lab.inside(200, "stat", "-c", "%u:%g", f"/root/{name}").stdout == "0:0\n"


def test_a_source_that_is_not_there_is_named_and_leaves_nothing(connect: Any, tmp_path: Path) -> None:
    connection = connect()
    agent = connection.exec_command("echo $PPID")
    with pytest.raises(AnsibleFileNotFound, match=f"{tmp_path}/nothing is no file on the controller"):
        connection.put_file(str(tmp_path / "nothing"), "/root/put")
    for source, words in (("/root/nothing", "does not exist"), ("/root", "is no regular file")):
        with pytest.raises(AnsibleError, match=f"Could not fetch a file: {source} {words} in the container"):
            connection.fetch_file(source, str(tmp_path / "back"))
    assert connection.exec_command("test ! -e /root/put && echo $PPID") == agent
    assert list(tmp_path.iterdir()) == []


def test_what_finds_no_room_in_the_container_is_refused(lab: Lab, connect: Any, tmp_path: Path) -> None:
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


def test_case_12_a_file_of_2_gib_in_bounded_memory(lab: Lab, tmp_path: Path) -> None:
    source, back = tmp_path / "big", tmp_path / "back"
    with source.open("wb") as stream:
        stream.truncate(2 << 30)
        for at in range(0, 2048, 100):  # sparse, but not the same everywhere
            stream.seek(at << 20)
            stream.write(os.urandom(4096))
    code = BIG.format(tests=str(Path(__file__).parent), source=str(source), back=str(back))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    try:
        assert done.returncode == 0, done.stderr
        grown_kib = int(done.stdout)
        assert grown_kib < 32 << 10
        wanted = checksum(source)
        assert lab.inside(200, "sha256sum", "/root/big").stdout.split()[0] == wanted
        assert checksum(back) == wanted
    finally:
        lab.inside(200, "rm", "-f", "/root/big")
        for path in (source, back):
            path.unlink(missing_ok=True)


def checksum(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def parts(lab: Lab) -> list[str]:
    """Return the temporary files in /root of container 200."""
    return [name for name in lab.inside(200, "ls", "-A", "/root").stdout.split() if ".pct-part-" in name]


def test_case_12_ssh_cut_midway(lab: Lab, connect: Any, tmp_path: Path) -> None:
    source = tmp_path / "source"
    with source.open("wb") as stream:
        stream.truncate(4 << 30)
    connection = connect()
    connection.exec_command("echo old > /root/target")

    def cut_once_it_writes() -> None:
        while not parts(lab):
            time.sleep(0.02)
        connection._channel.process.kill()

    killer = threading.Thread(target=cut_once_it_writes)
    killer.start()
    with pytest.raises(AnsibleConnectionFailure, match=r"broke while a command ran.*status: running"):
        connection.put_file(str(source), "/root/target")
    killer.join()
    assert lab.inside(200, "cat", "/root/target").stdout == "old\n"
    end = time.monotonic() + 20
    while parts(lab) and time.monotonic() < end:
        time.sleep(0.1)
    assert parts(lab) == []
    source.write_text("new\n", encoding="utf-8")
    connection.put_file(str(source), "/root/target")
    assert lab.inside(200, "cat", "/root/target").stdout == "new\n"


# ---- failures --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"pct_vmid": 999}, "has no container 999.*pct list"),
        ({"pct_vmid": 999, "pct_method": "lxc-attach"}, "has no container 999"),
        ({"pct_vmid": 999, "pct_method": "lxc-attach", "ansible_user": "operator", "pct_sudo": True}, "no container 9"),
        ({"pct_executable": "/opt/pct"}, "/opt/pct is not on 127.0.0.1.*pct_executable"),
        ({"ansible_port": 1}, "No ssh connection to 127.0.0.1: .*refused.*Remedy"),
        ({"ansible_host": "no-such-host.invalid"}, "name no-such-host.invalid has no address"),
        ({"ansible_user": "operator"}, "is not root.*pct_sudo"),
        ({"ansible_user": "somebody"}, "refuses the ssh login.*somebody@127.0.0.1"),
    ],
)
def test_each_failure_has_its_own_message(lab: Lab, connect: Any, options: dict[str, Any], words: str) -> None:
    with pytest.raises(AnsibleConnectionFailure, match=words):
        connect(**options).exec_command("true")


@pytest.mark.parametrize("vmid", ["abc", "12", "200; id", "-200", ""])
def test_an_odd_vmid_is_refused_before_any_login(lab: Lab, connect: Any, vmid: str) -> None:
    logins = lab.logins()
    with pytest.raises(AnsibleError, match=r"pct_vmid = .*Remedy"):
        connect(pct_vmid=vmid, ansible_ssh_args="").exec_command("true")
    assert lab.logins() == logins


def test_an_unchecked_host_key_is_refused_by_default(lab: Lab, connect: Any) -> None:
    words = "host key of 127.0.0.1 is not the known one.*ssh-keyscan"
    with pytest.raises(AnsibleConnectionFailure, match=words):
        connect(ansible_ssh_common_args="-o UserKnownHostsFile=/dev/null -o ControlPath=none").exec_command("true")


def test_sudo_serves_a_login_that_is_not_root(lab: Lab, connect: Any) -> None:
    for method in METHODS:
        connection = connect(ansible_user="operator", pct_sudo=True, pct_method=method)
        assert connection.exec_command("id -u; echo $SUDO_USER") == (0, b"0\n\n", b"")
        connection.put_file("/etc/hostname", f"/root/sudo-{method}")
        assert connection.exec_command(f"stat -c %u:%g /root/sudo-{method}") == (0, b"0:0\n", b"")
    host.allow_sudo(lab.layout, False)
    try:
        with pytest.raises(AnsibleConnectionFailure, match=r"may not run pct through sudo.*NOPASSWD: /usr/sbin/pct"):
            connect(ansible_user="operator", pct_sudo=True).exec_command("true")
    finally:
        host.allow_sudo(lab.layout, True)


@pytest.mark.parametrize("method", METHODS)
def test_case_05_a_stopped_container_is_named(lab: Lab, connect: Any, method: str) -> None:
    lab.pct("stop", "201")
    try:
        with pytest.raises(AnsibleConnectionFailure, match=r"Container 201 on 127.0.0.1 is not running.*pct start 201"):
            connect(pct_vmid=201, pct_method=method).exec_command("true")
    finally:
        lab.pct("start", "201")
        lab.wait_ready(201)


def test_case_05_a_frozen_container_is_waited_for_only_so_long(lab: Lab, connect: Any) -> None:
    lab.pct("set", "201", "--lock", "backup")
    host.run_on_host(lab.layout, "lxc-freeze", "-n", "201")
    started = time.monotonic()
    try:
        with pytest.raises(AnsibleConnectionFailure, match=r"did not answer within 2 s .*lock: backup.*pct_timeout"):
            connect(pct_vmid=201, pct_timeout=2, ansible_ssh_timeout=1).exec_command("true")
        assert time.monotonic() - started < 60
    finally:
        host.run_on_host(lab.layout, "lxc-unfreeze", "-n", "201")
        lab.pct("unlock", "201")


def test_case_05_a_container_that_stops_under_a_command(lab: Lab, connect: Any) -> None:
    connection = connect(pct_vmid=201)
    connection.exec_command("true")
    threading.Timer(1, lab.pct, ("stop", "201")).start()
    started = time.monotonic()
    words = r"Container 201 .*not running|broke while a command ran.*stopped"
    with pytest.raises(AnsibleConnectionFailure, match=words):
        connection.exec_command("sleep 120")
    assert time.monotonic() - started < 60
    with pytest.raises(AnsibleConnectionFailure, match="not running"):
        connection.exec_command("true")
    lab.pct("start", "201")
    lab.wait_ready(201)
    assert connection.exec_command("echo back") == (0, b"back\n", b"")


def test_case_05_the_reboot_module_comes_back(lab: Lab, play: Any) -> None:
    done = play("""
- reboot: {reboot_timeout: 90, post_reboot_delay: 1, test_command: hostname}
- command: cat /proc/uptime
""", pct_vmid=201)
    assert done.returncode == 0, done.stdout
    lab.wait_ready(201)


def test_a_locked_container_still_runs_commands(lab: Lab, connect: Any) -> None:
    """A backup in snapshot mode holds the lock for hours; the training goes on and so must its operator."""
    lab.pct("set", "201", "--lock", "backup")
    try:
        assert connect(pct_vmid=201).exec_command("echo yes") == (0, b"yes\n", b"")
        assert "CT is locked (backup)" in lab.pct("stop", "201", check=False).stderr
    finally:
        lab.pct("unlock", "201")


def test_a_way_that_ended_while_nothing_was_asked_is_made_anew(lab: Lab, connect: Any) -> None:
    connection = connect(pct_vmid=201)
    connection.exec_command("true")
    lab.pct("reboot", "201")
    until(lambda: not connection._channel.usable())
    assert connection.exec_command("echo back") == (0, b"back\n", b"")
    lab.wait_ready(201)


def test_a_shared_login_that_died_unnoticed_is_waited_for_only_so_long(
    connect: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"ansible_control_path_dir": str(tmp_path), "pct_timeout": 2, "ansible_ssh_timeout": 1}
    connection = connect(**options)
    monkeypatch.setattr(sys.modules[type(connection).__module__], "LOOK_S", 6)
    connection.exec_command("true")
    connection.close()
    master = master_of(tmp_path)
    os.kill(master, signal.SIGSTOP)
    try:
        with pytest.raises(AnsibleConnectionFailure, match=r"did not answer within 2 s \(the host does not answer\)"):
            connect(**options).exec_command("true")
    finally:
        os.kill(master, signal.SIGKILL)


def master_of(folder: Path) -> int:
    """Return the pid of the ssh that keeps the shared login whose socket is in a folder."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and f"{folder}/".encode() in (entry / "cmdline").read_bytes():
            return int(entry.name)
    raise AssertionError("there is no master")


def test_twelve_hosts_at_once_over_one_login(lab: Lab, tmp_path: Path, play: Any) -> None:
    """Two containers of one host, twelve forks: sshd would drop logins that come ten at once."""
    hosts = {f"box{number}": {"pct_vmid": 200 + number % 2} for number in range(12)}
    (tmp_path / "file").write_bytes(os.urandom(300_000))
    logins = lab.logins()
    done = play("""
- copy: {src: file, dest: "/root/{{ inventory_hostname }}", mode: "0644"}
- command: sha256sum /root/{{ inventory_hostname }}
  register: summed
- assert: {that: "summed.stdout.split()[0] == sum"}
- command: hostname
  register: who
- assert: {that: "who.stdout == 'ct' ~ pct_vmid"}
""", "--forks=12", hosts=hosts, env={"ANSIBLE_SSH_CONTROL_PATH_DIR": str(tmp_path / "cp")},
                sum=checksum(tmp_path / "file"))
    assert done.returncode == 0, done.stdout
    # sshd allows ten sessions a login (MaxSessions); those beyond log in themselves
    assert lab.logins() - logins < 12
    close_logins(tmp_path / "cp")


@pytest.mark.parametrize("container", [200, 201])
def test_a_role_of_modules_files_and_users_goes_through_lxc_attach(lab: Lab, tmp_path: Path, play: Any,
                                                                   container: int) -> None:
    calls = len(lab.pct_calls())
    (tmp_path / "template.j2").write_text("{{ inventory_hostname }}\n", encoding="utf-8")
    (tmp_path / "script.sh").write_text("#!/bin/sh\nid -un\n", encoding="utf-8")
    done = play("""
- file: {path: /root/attach, state: directory, mode: "0750"}
- template: {src: template.j2, dest: /root/attach/text, mode: "0640", owner: games}
- copy: {content: "", dest: /root/attach/empty, mode: "0600"}
- script: ./script.sh
  become: true
  become_user: games
  register: who
- stat: {path: /root/attach/text}
  register: text
- fetch: {src: /root/attach/text, dest: fetched, flat: true}
- assert:
    that:
      - who.stdout_lines == ['games']
      - text.stat.pw_name == 'games'
      - text.stat.mode == '0640'
- command: test -e /root/nothing
  register: absent
  failed_when: absent.rc != 1
  changed_when: false
""", pct_method="lxc-attach", pct_vmid=container)
    assert done.returncode == 0, done.stdout
    assert (tmp_path / "fetched").read_text(encoding="utf-8") == "trainer\n"
    assert len(lab.pct_calls()) == calls


def test_retries_wait_for_a_container_that_comes_up(lab: Lab, connect: Any) -> None:
    lab.pct("stop", "201")
    threading.Timer(1.5, lab.pct, ("start", "201")).start()
    found = connect(pct_vmid=201, ansible_ssh_retries=6).exec_command("echo up")
    assert found == (0, b"up\n", b"")
    lab.wait_ready(201)


def test_slow_pct_is_no_failure(lab: Lab, connect: Any) -> None:
    lab.set_delay(1.0)
    try:
        assert connect().exec_command("echo slow") == (0, b"slow\n", b"")
    finally:
        lab.layout.pct_delay.unlink()


def test_output_of_a_login_script_does_not_disturb(lab: Lab, connect: Any) -> None:
    lab.layout.host.joinpath("root/.lab_environment").write_text(textwrap.dedent("""
        echo 'Welcome to this host'
        echo 'and a warning' >&2
    """), encoding="utf-8")
    try:
        assert connect().exec_command("echo clean") == (0, b"clean\n", b"")
    finally:
        lab.set_host_environment({})
