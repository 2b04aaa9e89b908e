"""Each failure on the path into a container has its own message and remedy."""
from __future__ import annotations

import pytest
from dflash_ops.proxmox.pct_errors import FAILURES, Target, explain, explain_loss, explain_silence

TARGET = Target(host="192.0.2.10", vmid=200, user="root")
# output of a program -> name of the failure
OUTPUTS = {
    "Configuration file 'nodes/pve/lxc/200.conf' does not exist\n": "unknown vmid",
    "container '200' not running!\n": "container stopped",
    "lxc-attach: 200: ../src/lxc/attach.c: get_attach_context: 406 Connection refused - Failed to get init pid\n":
        "container stopped",
    "CT is locked (backup)\n": "container locked",
    "trying to acquire lock...\ncan't lock file '/run/lock/lxc/pve-config-200.lock' - got timeout\n":
        "container locked",
    "400 Parameter verification failed.\nvmid: value must have a minimum value of 100\n": "bad vmid",
    "bash: line 1: /usr/sbin/pct: No such file or directory\n": "pct missing",
    "sh: 1: /usr/sbin/pct: not found\n": "pct missing",
    "bash: lxc-attach: command not found\n": "pct missing",
    "sudo: a password is required\n": "sudo password",
    "operator is not in the sudoers file.\n": "sudo password",
    "sh: 1: sudo: not found\n": "sudo missing",
    "please run as root\n": "not root",
    "lxc-attach: 200: ../src/lxc/attach.c: lxc_attach: 1470 Operation not permitted - Failed\n": "not root",
    "Host key verification failed.\n": "host key",
    "root@192.0.2.10: Permission denied (publickey).\n": "ssh login refused",
    "ssh: Could not resolve hostname pve: Name or service not known\n": "ssh name",
    "ssh: connect to host 192.0.2.10 port 22: Connection refused\n": "ssh down",
    "ssh: connect to host 192.0.2.10 port 22: Connection timed out\n": "ssh down",
    "kex_exchange_identification: read: Connection reset by peer\n": "ssh down",
}


@pytest.mark.parametrize("text", list(OUTPUTS))
def test_output_of_a_program_gets_one_line_with_its_remedy(text: str) -> None:
    expected = next(failure for failure in FAILURES if failure.name == OUTPUTS[text])
    message = explain(f"Warning: Permanently added 'x' to the list of known hosts.\n{text}", TARGET)
    assert message
    assert expected.remedy.partition("{")[0] in message
    assert "{" not in message
    assert "\n" not in message


def test_every_failure_is_covered() -> None:
    assert {failure.name for failure in FAILURES} == set(OUTPUTS.values())


def test_message_names_the_kind_of_lock() -> None:
    assert "locked (backup)" in str(explain("CT is locked (backup)", TARGET))


def test_unknown_output_is_not_explained() -> None:
    assert explain("segmentation fault", TARGET) is None


def test_timeout_and_lost_connection_report_the_container_state() -> None:
    assert "200 on 192.0.2.10 did not answer within 30 s (lock: suspend" in explain_silence(TARGET, 30, "lock: suspend")
    message = explain_loss(TARGET, "status: stopped", "hi\nbye\n")
    assert "was lost while a command was running (bye); status: stopped" in message
