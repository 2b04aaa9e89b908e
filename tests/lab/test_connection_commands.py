"""Commands in a container: environment, output, become, and a container without python3."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible.errors import AnsibleConnectionFailure, AnsibleError
from ansible.plugins.loader import become_loader, get_shell_plugin
from connection_helpers import METHODS
from dflash_lab import host
from dflash_lab.lab import LEAKING, Lab


def test_ansible_doc_shows_the_plugin(lab: Lab) -> None:
    command = [str(Path(sys.executable).with_name("ansible-doc")), "-t", "connection", "pct"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for option in ("pct_vmid", "pct_method", "private_key_file", "ssh_common_args"):
        assert option in done.stdout


@pytest.mark.parametrize("method", METHODS)
def test_variables_of_the_host_do_not_reach_the_container(lab: Lab, connect: Any, method: str) -> None:
    lab.set_host_environment(LEAKING | {"LANG": "xx_XX", "PYTHONHOME": "/nowhere"})
    try:
        # a plain `pct exec` passes these variables on
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


def test_a_python_in_usr_local_bin_is_found(lab: Lab, connect: Any) -> None:
    lab.inside(201, "sh", "-c", "cd /usr/local/bin; mv /usr/bin/python3 .; ln -s /usr/bin/python3.11 python3.11;"
               " cp /usr/bin/env only-here")
    try:
        status, out, _err = connect(pct_vmid=201).exec_command("command -v python3; command -v only-here")
    finally:
        lab.inside(201, "sh", "-c", "cd /usr/local/bin; mv python3 /usr/bin/; rm python3.11 only-here")
    assert (status, out) == (0, b"/usr/local/bin/python3\n/usr/local/bin/only-here\n")


def test_without_python_commands_work_and_copies_report_the_reason(lab: Lab, connect: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x", encoding="utf-8")
    lab.inside(201, "mv", "/usr/bin/python3", "/usr/bin/python3.hidden")
    try:
        connection = connect(pct_vmid=201)
        assert connection.exec_command("echo in; echo to >&2; exit 3") == (3, b"in\n", b"to\n")
        with pytest.raises(AnsibleError, match="has no python3, which is needed for copying"):
            connection.put_file(str(tmp_path / "file"), "/root/file")
    finally:
        lab.inside(201, "mv", "/usr/bin/python3.hidden", "/usr/bin/python3")


@pytest.fixture(params=[True, False], ids=["python", "no-python"])
def with_and_without_python(lab: Lab, connect: Any, request: pytest.FixtureRequest) -> Iterator[Any]:
    """Container 201, with the agent and without python3."""
    if request.param:
        yield connect(pct_vmid=201)
        return
    lab.inside(201, "mv", "/usr/bin/python3", "/usr/bin/python3.hidden")
    try:
        yield connect(pct_vmid=201)
    finally:
        lab.inside(201, "mv", "/usr/bin/python3.hidden", "/usr/bin/python3")


def test_new_files_do_not_depend_on_the_umask_of_the_login(lab: Lab, with_and_without_python: Any) -> None:
    lab.layout.host.joinpath("root/.lab_environment").write_text("umask 077\n", encoding="utf-8")
    try:
        command = "umask; rm -f /root/created; touch /root/created; stat -c %a /root/created; pwd"
        assert with_and_without_python.exec_command(command) == (0, b"0022\n644\n/root\n", b"")
    finally:
        lab.set_host_environment({})


def test_the_success_line_of_become_is_removed_from_the_output(with_and_without_python: Any) -> None:
    become = become_loader.get("sudo")
    become.set_options(direct={"become_user": "games"})
    with_and_without_python.set_become_plugin(become)
    command = become.build_become_command("id -un", get_shell_plugin(executable="/bin/sh"))
    assert with_and_without_python.exec_command(command)[:2] == (0, b"games\n")
    assert with_and_without_python.exec_command(command, sudoable=False)[1].startswith(become.success.encode())


@pytest.mark.parametrize("method", METHODS)
def test_without_python_command_output_is_not_a_connection_error(lab: Lab, connect: Any, method: str) -> None:
    lab.inside(201, "mv", "/usr/bin/python3", "/usr/bin/python3.hidden")
    try:
        connection = connect(pct_vmid=201, pct_method=method)
        for output in ("E: Connection timed out", "sshd.service is not running", "sudo: a password is required"):
            found = connection.exec_command(f"echo '{output}' >&2; exit 3")
            assert found == (3, b"", f"{output}\n".encode())
        assert connection.exec_command("cat; exit 255", in_data=b"x") == (255, b"x", b"")
        lab.pct("stop", "201")
        with pytest.raises(AnsibleConnectionFailure, match=r"Container 201 on 127.0.0.1 is not running"):
            connection.exec_command("true")
    finally:
        lab.pct("start", "201", check=False)
        lab.wait_ready(201)
        lab.inside(201, "mv", "/usr/bin/python3.hidden", "/usr/bin/python3")


def test_invalid_utf8_is_replaced_in_the_output(connect: Any) -> None:
    status, out, err = connect().exec_command("printf 'a\\377' >&2; printf 'b\\376'; exit 5")
    assert (status, out.decode(), err.decode()) == (5, "b\ufffd", "a\ufffd")


def test_a_play_survives_invalid_utf8(play: Any) -> None:
    done = play("- raw: printf 'a\\377' >&2; exit 5")
    assert "failed=1" in done.stdout
    assert "rc: 5" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr


def test_output_of_a_login_script_is_ignored(lab: Lab, connect: Any) -> None:
    lab.layout.host.joinpath("root/.lab_environment").write_text(textwrap.dedent("""
        echo 'Welcome to this host'
        echo 'and a warning' >&2
    """), encoding="utf-8")
    try:
        assert connect().exec_command("echo clean") == (0, b"clean\n", b"")
    finally:
        lab.set_host_environment({})


def test_a_slow_pct_is_not_an_error(lab: Lab, connect: Any) -> None:
    lab.set_delay(1.0)
    try:
        assert connect().exec_command("echo slow") == (0, b"slow\n", b"")
    finally:
        lab.layout.pct_delay.unlink()


def test_sudo_works_for_a_login_that_is_not_root(lab: Lab, connect: Any) -> None:
    for method in METHODS:
        connection = connect(ansible_user="operator", pct_sudo=True, pct_method=method)
        assert connection.exec_command("id -u; echo $SUDO_USER") == (0, b"0\n\n", b"")
        connection.put_file("/etc/hostname", f"/root/sudo-{method}")
        assert connection.exec_command(f"stat -c %u:%g /root/sudo-{method}") == (0, b"0:0\n", b"")
    host.allow_sudo(lab.layout, False)
    try:
        with pytest.raises(AnsibleConnectionFailure, match=r"not allowed to run pct .*NOPASSWD: /usr/sbin/pct"):
            connect(ansible_user="operator", pct_sudo=True).exec_command("true")
    finally:
        host.allow_sudo(lab.layout, True)


@pytest.mark.parametrize("container", [200, 201])
def test_modules_files_and_become_work_through_lxc_attach(lab: Lab, tmp_path: Path, play: Any,
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
