"""Errors between the controller, the Proxmox host and the container: cause and remedy for an operator."""
from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Target:
    """The container that a command was sent to, for messages."""

    host: str
    vmid: int
    executable: str = "/usr/sbin/pct"
    user: str = ""

    @property
    def login(self) -> str:
        """The ssh command that logs in to the host."""
        return f"ssh {self.user + '@' if self.user else ''}{self.host}"


@dataclass(frozen=True)
class Failure:
    """A known failure: the pattern of its output, the message and the remedy."""

    name: str
    pattern: str
    message: str
    remedy: str


# The first matching pattern wins. Errors of pct come before those of ssh.
FAILURES = (
    Failure(
        "unknown vmid",
        r"Configuration file '[^']*' does not exist|No such container|does not exist on (this )?node",
        "Proxmox host {host} has no container {vmid}.",
        "Run `pct list` there and set pct_vmid to an ID it shows (in a cluster: ansible_host to the node that has"
        " the container), or create it with playbooks/provision.yml.",
    ),
    Failure(
        "container locked",
        r"CT is locked \(([^)]*)\)|can't lock file '([^']*pve-config[^']*)'",
        "Container {vmid} on {host} is locked ({detail}).",
        "Wait until the backup, snapshot or migration has ended; if none is running, `pct unlock {vmid}` on the host.",
    ),
    Failure(
        "container stopped",
        r"container '?\d+'? (is )?not running|CT \d+ not running|Container is not running|"
        r"Failed to get init pid|Failed to get (the )?(init )?(pid|state) of container|Failed to attach to (a )?"
        r"(stopped|container)|is not running",
        "Container {vmid} on {host} is not running.",
        "Start it with `pct start {vmid}` on the host; if it is rebooting, try again in a moment.",
    ),
    Failure(
        "bad vmid",
        r"400 Parameter verification failed",
        "pct on {host} does not accept container ID {vmid}: {detail}",
        "Set pct_vmid to an ID that `pct list` shows.",
    ),
    Failure(
        "sudo password",
        r"sudo: a password is required|sudo: a terminal is required|is not in the sudoers file|may not run sudo|"
        r"is not allowed to execute",
        "The login on {host} is not allowed to run pct through sudo without a password.",
        "Allow it in /etc/sudoers.d/ there (`USER ALL=(root) NOPASSWD: {executable}, /usr/bin/lxc-attach`),"
        " or log in as root.",
    ),
    Failure(
        "sudo missing",
        r"sudo: (command )?not found",
        "pct_sudo is set, but sudo is not installed on {host}.",
        "Install sudo on the host, or log in as root and unset pct_sudo.",
    ),
    Failure(
        "not root",
        r"please run as root|must be run as root|(lxc-attach|pct).*Permission denied|Permission denied.*/pct|"
        r"(lxc-attach|attach\.c).*Operation not permitted|needs root",
        "The login on {host} is not root, and only root can enter a container.",
        "Set ansible_user: root, or pct_sudo: true for a user who may run {executable} through sudo.",
    ),
    Failure(
        "pct missing",
        r"(/pct|\bpct|lxc-attach)['\"]?: (command )?(not found|No such file or directory)|"
        r"(not found|No such file or directory).*(/pct|lxc-attach)",
        "{executable} does not exist on {host}.",
        "Check that ansible_host is the Proxmox host and not the container or another machine; set pct_executable"
        " if pct is installed elsewhere.",
    ),
    Failure(
        "host key",
        r"Host key verification failed|REMOTE HOST IDENTIFICATION HAS CHANGED|No .* host key is known",
        "The ssh host key of {host} is unknown or has changed.",
        "Compare the fingerprint on the host's console, then add it with `ssh-keyscan -H {host} >> ~/.ssh/known_hosts`;"
        " if it changed, remove the old one first with `ssh-keygen -R {host}`.",
    ),
    Failure(
        "ssh login refused",
        r"Permission denied \(|Too many authentication failures|No supported authentication methods",
        "{host} refused the ssh login.",
        "Try `{login}` by hand; check ansible_user, ansible_ssh_private_key_file and the key in authorized_keys there.",
    ),
    Failure(
        "ssh name",
        r"Could not resolve hostname|Name or service not known",
        "The host name {host} cannot be resolved.",
        "Check ansible_host and the name server.",
    ),
    Failure(
        "ssh down",
        r"Connection refused|Connection timed out|Operation timed out|No route to host|Network is unreachable|"
        r"Connection closed by|Connection reset|kex_exchange_identification|ssh: connect to host|banner exchange",
        "No ssh connection to {host}: {detail}",
        "Check that the host is up, that sshd is running there, and ansible_port; try `{login}` by hand.",
    ),
)


# failures of a plain ssh login
LOGIN = tuple(failure for failure in FAILURES if failure.name == "host key" or failure.name.startswith("ssh "))


def explain_login(text: str, *, host: str, user: str) -> str | None:
    """Return one line with cause and remedy for the output of a failed plain ssh login; None when unknown."""
    return explain(text, Target(host=host, vmid=0, user=user), LOGIN)


def explain(text: str, target: Target, failures: Iterable[Failure] = FAILURES) -> str | None:
    """Return one line with cause and remedy for the output of pct, lxc-attach, sudo or ssh; None when unknown."""
    for failure in failures:
        found = re.search(failure.pattern, text)
        if found:
            values = {
                "host": target.host,
                "vmid": target.vmid,
                "executable": target.executable,
                "login": target.login,
                "detail": next((group for group in found.groups() if group), "") or line_around(text, found.start()),
            }
            return f"{failure.message.format(**values).rstrip('.')}. Remedy: {failure.remedy.format(**values)}"
    return None


def line_around(text: str, position: int) -> str:
    """Return the line of `text` at `position`; for a parameter error of pct, the line after it."""
    lines = text[text.rfind("\n", 0, position) + 1:].splitlines()
    if lines[0].startswith("400 ") and len(lines) > 1:
        return lines[1].strip()
    return lines[0].strip()


def explain_silence(target: Target, seconds: float, state: str) -> str:
    """Return the message for a container that does not answer; `state` is the output of pct status and the lock."""
    return (
        f"Container {target.vmid} on {target.host} did not answer within {seconds:g} s ({state}). "
        f"Remedy: check `pct status {target.vmid}` and `pct config {target.vmid}` on the host. A frozen or suspended"
        " container (backup in suspend mode) answers again when that ends; raise pct_timeout if it is only slow."
    )


def explain_loss(target: Target, state: str, text: str) -> str:
    """Return the message for a connection that was lost while a command was running."""
    detail = f" ({last_line(text)})" if last_line(text) else ""
    return (
        f"The connection to container {target.vmid} on {target.host} was lost while a command was running{detail}; "
        f"{state}. Remedy: the command may or may not have finished; run the playbook again when the container is back."
    )


def last_line(text: str) -> str:
    """Return the last non-empty line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""
