"""Each failure on the way into a container has its own words, and a remedy."""
from __future__ import annotations

import pytest
from dflash_ops.proxmox.pct_errors import FAILURES, Place, explain, explain_loss, explain_silence

PLACE = Place(host="192.0.2.10", vmid=200, user="root")
# what the programs print, and the failure that it means
WORDS = {
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


@pytest.mark.parametrize("text", list(WORDS))
def test_words_of_the_programs_are_understood(text: str) -> None:
    wanted = next(failure for failure in FAILURES if failure.name == WORDS[text])
    said = explain(f"Warning: Permanently added 'x' to the list of known hosts.\n{text}", PLACE)
    assert said
    assert wanted.remedy.partition("{")[0] in said
    assert "{" not in said
    assert "\n" not in said


def test_every_failure_is_reached() -> None:
    assert {failure.name for failure in FAILURES} == set(WORDS.values())


def test_a_lock_is_named() -> None:
    assert "locked (backup)" in str(explain("CT is locked (backup)", PLACE))


def test_unknown_words_are_not_explained_away() -> None:
    assert explain("segmentation fault", PLACE) is None


def test_silence_and_loss_name_the_state() -> None:
    assert "200 on 192.0.2.10 did not answer within 30 s (lock: suspend" in explain_silence(PLACE, 30, "lock: suspend")
    assert "broke while a command ran (bye); status: stopped" in explain_loss(PLACE, "status: stopped", "hi\nbye\n")
