"""Connection plugin `pct`: ssh to a Proxmox host, then `pct exec` into one of its containers."""
from __future__ import annotations

DOCUMENTATION = """
name: pct
short_description: Connect to an LXC container on a Proxmox host through ssh and pct exec
version_added: "1.0.0"
author: dflash-ansible contributors
description:
  - Logs in to the Proxmox host as the builtin ssh connection does, and runs everything as root in container
    O(pct_vmid) through C(pct exec), or C(lxc-attach).
  - One C(pct) call is enough for all commands and files of a task, and for the tasks that follow within
    O(pct_persist) seconds.
  - Commands start with a fixed environment, without variables of the host or of the login.
  - Files are copied piece by piece to a temporary name, verified by checksum and then renamed. New files belong to root
    of the container, unprivileged or not; a replaced file keeps its owner and mode.
  - O(remote_user) is the login on the host; C(become) works in the container.
options:
  pct_vmid:
    description: ID of the container, as C(pct list) on the host shows it.
    type: str
    required: true
    vars:
      - name: pct_vmid
  pct_method:
    description:
      - V(pct) uses Proxmox's own command, whose errors are the most specific.
      - V(lxc-attach) uses LXC directly and avoids the start-up time of pct in each task.
    type: str
    choices: [pct, lxc-attach]
    default: pct
    vars:
      - name: pct_method
  pct_executable:
    description: Path of pct on the host.
    type: str
    default: /usr/sbin/pct
    vars:
      - name: pct_executable
  pct_sudo:
    description: Use sudo without a password on the host. For a login that is not root.
    type: bool
    default: false
    vars:
      - name: pct_sudo
  pct_timeout:
    description: Seconds to wait for the container's first answer in a task.
    type: float
    default: 30
    vars:
      - name: pct_timeout
  pct_persist:
    description:
      - Seconds for which the connection into the container stays open after a task, so that the next task needs no
        C(pct) call, as ControlPersist does for logins. A small process of this user keeps it open, behind a socket in
        O(control_path_dir).
      - V(0) closes it after each task, so that each task costs one C(pct) call.
    type: float
    default: 60
    vars:
      - name: pct_persist
extends_documentation_fragment:
  - pct_ssh
notes:
  - The host key is verified, as ssh does by default.
  - Copying files needs python3 in the container. Without it only plain commands work, with one C(pct) call each.
"""

EXAMPLES = """
# inventory/proxmox.yml
all:
  hosts:
    trainer:
      ansible_connection: pct
      ansible_host: 192.0.2.10   # the Proxmox host
      ansible_user: root
      pct_vmid: 200
"""

import hashlib
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from ansible.errors import AnsibleConnectionFailure, AnsibleError, AnsibleFileNotFound
from ansible.plugins.connection import ssh
from ansible.utils.display import Display
from ansible.utils.path import makedirs_safe, unfrackpath

_PLUGINS = Path(__file__).resolve().parents[1]
sys.path += [str(_PLUGINS / folder) for folder in ("module_utils", "plugin_utils")]

from dflash_controller.pct_channel import AGENT_COMMAND, Channel, ChannelLost, ChannelRefused, ChannelSilent, NoPython
from dflash_controller.pct_login import serialized_login
from dflash_ops.core.errors import OpsError
from dflash_ops.proxmox.pct_command import check_vmid, pct_command
from dflash_ops.proxmox.pct_errors import Target, explain, explain_loss, explain_silence, last_line

# options that identify a channel; tasks share one only when all of them are equal
CHANNEL_OPTIONS = (
    "host", "port", "remote_user", "pct_vmid", "pct_method", "pct_executable", "pct_sudo",
    "private_key_file", "ssh_executable", "ssh_args", "ssh_common_args", "ssh_extra_args", "host_key_checking",
)
# printed before a command that runs without an agent: output before this line is ssh's or pct's
ENTERED = "dflash-pct: entered"
STATE_TIMEOUT_S = 25  # for reading the container's state on the host, for a message
SSH_FAILED = 255
display = Display()
T = TypeVar("T")


class Connection(ssh.Connection):
    """Connection from the controller (this process) over the Proxmox host (ssh login) to a container.

    put_file copies a file from the controller to the container, fetch_file from the container to the controller;
    neither is written to the host's disk. The parent class builds ssh's command line, keeps its ControlMaster and
    handles passwords and keys. This class runs the agent in the container through that ssh.
    """

    transport = "pct"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._channel: Channel | None = None
        self._channel_key: tuple[Any, ...] = ()
        self._has_python = True

    # ---- called by Ansible ---------------------------------------------------------------------------------

    def exec_command(self, cmd: str, in_data: bytes | None = None, sudoable: bool = True) -> tuple[int, bytes, bytes]:
        """Run a command in the container; return (rc, stdout, stderr)."""
        self._check_options()
        if self._has_python:
            try:
                display.vvv(f"PCT: EXEC in {self._target().vmid}: {cmd}", host=self.host)
                status, out, err = self._with_channel(lambda channel: channel.run(cmd, in_data))
                out = self._without_become_marker(out) if sudoable else out
                return status, as_text(out), as_text(err)
            except NoPython:
                self._has_python = False
        return self._exec_without_agent(cmd, in_data, sudoable)

    def put_file(self, in_path: str, out_path: str) -> None:
        """Copy a file from the controller to the container."""
        self._check_options()
        display.vvv(f"PCT: PUT {in_path} TO {out_path} in {self._target().vmid}", host=self.host)
        if not Path(in_path).is_file():
            raise AnsibleFileNotFound(f"{in_path} is not a file on the controller")
        self._copy(lambda channel: channel.put(Path(in_path), out_path))

    def fetch_file(self, in_path: str, out_path: str) -> None:
        """Copy a file from the container to the controller."""
        self._check_options()
        display.vvv(f"PCT: FETCH {in_path} TO {out_path} from {self._target().vmid}", host=self.host)
        self._copy(lambda channel: channel.get(in_path, Path(out_path)))

    def reset(self) -> None:
        """Close the channel, also one that an earlier task left open, and the login."""
        self._check_options()
        if self._channel is None:
            self._channel = Channel.borrow(self._holder_path(), timeout_s=1)
        if self._channel:
            self._channel.busy = True  # so that its holder does not keep it
        self._close_channel()
        super().reset()

    def close(self) -> None:
        """Keep the channel open for the next task, or close it."""
        idle_s = float(self.get_option("pct_persist")) if self._channel else 0
        if self._channel and idle_s > 0:
            self._channel.close(keep_at=self._holder_path(), idle_s=idle_s)
            self._channel = None
        self._close_channel()
        super().close()

    # ---- the channel ---------------------------------------------------------------------------------------

    def _check_options(self) -> None:
        """Set the attributes that the parent class reads, and validate our options before anything is sent."""
        self.host = self.get_option("host") or self._play_context.remote_addr
        try:
            check_vmid(self.get_option("pct_vmid"))
        except OpsError as error:
            raise AnsibleError(str(error)) from None

    def _target(self) -> Target:
        return Target(
            host=str(self.host),
            vmid=check_vmid(self.get_option("pct_vmid")),
            executable=self.get_option("pct_executable"),
            user=self.get_option("remote_user") or "",
        )

    def _command(self, command: str | tuple[str, ...]) -> str:
        return pct_command(
            self.get_option("pct_vmid"),
            command,
            executable=self.get_option("pct_executable"),
            method=self.get_option("pct_method"),
            sudo=self.get_option("pct_sudo"),
        )

    def _with_channel(self, action: Callable[[Channel], T]) -> T:
        """Call `action` with the open channel; when it is lost, raise an error with the container's state."""
        channel = self._open_channel()
        try:
            return action(channel)
        except ChannelLost as loss:
            self._close_channel()
            target, text = self._target(), str(loss)
            message = explain(text, target) or explain_loss(target, self._container_state(), text)
            # `from None`: Ansible would append the raw output to the message; -vvv shows it
            display.vvv(f"PCT: lost: {text}", host=self.host)
            raise AnsibleConnectionFailure(message) from None

    def _copy(self, action: Callable[[Channel], None]) -> None:
        try:
            self._with_channel(action)
        except NoPython:
            target = self._target()
            raise AnsibleError(
                f"Container {target.vmid} on {target.host} has no python3, which is needed for copying files. Remedy:"
                " install it there, for example with a raw task: apt-get install -y python3"
            ) from None
        except (OpsError, OSError) as error:
            raise AnsibleError(str(error)) from None

    def _open_channel(self) -> Channel:
        """Return this task's channel; open another one when there is none or the options have changed."""
        key = self._channel_options()
        if self._channel and self._channel_key == key and self._channel.usable():
            return self._channel
        self._close_channel()
        attempts = int(self.get_option("reconnection_retries")) + 1
        for attempt in range(attempts):
            try:
                self._channel, self._channel_key = self._start_channel(), key
                self._connected = True
                return self._channel
            except AnsibleConnectionFailure as failure:
                if attempt + 1 == attempts:
                    raise
                display.vv(f"PCT: attempt {attempt + 1} of {attempts}: {failure}", host=self.host)
                time.sleep(min(2**attempt - 1, 30))
        raise AssertionError("the loop above returns or raises")

    def _channel_options(self) -> tuple[Any, ...]:
        """Return the values of the options that identify a channel."""
        return tuple(self.get_option(name) for name in CHANNEL_OPTIONS)

    def _holder_path(self) -> Path:
        """Return the path of the socket that tasks of this user with the same options share."""
        folder = unfrackpath(self.get_option("control_path_dir"))
        makedirs_safe(folder, 0o700)
        return Path(folder) / f"pct-{hashlib.sha256(repr(self._channel_options()).encode()).hexdigest()[:16]}"

    def _start_channel(self) -> Channel:
        """Borrow the channel of an earlier task, or open another one."""
        target, limit = self._target(), float(self.get_option("pct_timeout"))
        if float(self.get_option("pct_persist")) > 0:
            borrowed = Channel.borrow(self._holder_path(), timeout_s=limit)
            if borrowed:
                return borrowed
        try:
            return self._start_agent(limit)
        except ChannelSilent:
            raise AnsibleConnectionFailure(explain_silence(target, limit, self._container_state())) from None
        except ChannelRefused as refusal:
            raise AnsibleConnectionFailure(self._entry_error(refusal.status, refusal.text)) from None

    def _start_agent(self, limit: float) -> Channel:
        """Start an agent through ssh; tasks without a shared login to the host start one after the other."""
        seconds = limit + float(self.get_option("timeout"))

        def start(argv: list[bytes], popen: dict[str, Any]) -> Channel:
            with serialized_login(self._control_path()):
                return Channel.open(argv, timeout_s=seconds, **popen)

        return self._with_ssh(self._command(AGENT_COMMAND), start)

    @ssh._clean_shm
    def _with_ssh(self, remote: str, start: Callable[[list[bytes], dict[str, Any]], T]) -> T:
        """Call `start` with the parent's ssh command for a remote command, and with Popen options for a password."""
        argv = self._build_command(self.get_option("ssh_executable"), "ssh", "-T", self.host, remote)
        popen: dict[str, Any] = self._init_shm()
        pipe = self.sshpass_pipe if argv[0] == b"sshpass" else None
        if pipe:
            os.write(pipe[1], str(self.get_option("password")).encode() + b"\n")
            popen["pass_fds"] = pipe
        display.vvvv("PCT: " + shlex.join(argument.decode(errors="replace") for argument in argv), host=self.host)
        try:
            return start(argv, popen)
        finally:
            for end in pipe or ():
                os.close(end)

    def _control_path(self) -> Path | None:
        """Return the socket of ssh's ControlMaster; None when it is disabled or only ssh knows its path."""
        folder = unfrackpath(self.get_option("control_path_dir"))
        path = self.control_path % {"directory": folder} if self.control_path else ""
        return Path(path) if path and "%" not in path else None

    def _close_channel(self) -> None:
        if self._channel:
            self._channel.close()
        self._channel = None

    # ---- errors and plain commands -------------------------------------------------------------------------

    def _container_state(self) -> str:
        """Return the container's state according to the host, for a message. Never raises."""
        target = self._target()
        command = (
            f"timeout {STATE_TIMEOUT_S - 5} {'sudo -n ' if self.get_option('pct_sudo') else ''}"
            f"{shlex.quote(target.executable)} status {target.vmid} 2>&1; "
            f"grep -s '^lock:' /etc/pve/lxc/{target.vmid}.conf"
        )
        try:
            status, out, err = self._with_ssh(
                command, lambda argv, popen: run_ssh(argv, None, STATE_TIMEOUT_S, popen)
            )
        except (OSError, subprocess.TimeoutExpired):
            return "the host does not answer"
        text = (out + err).decode(errors="replace")
        output = ", ".join(line.strip() for line in text.splitlines() if line.strip())
        if status == SSH_FAILED:
            cause = (explain(text, target) or "").partition(" Remedy: ")[0]
            return cause.rstrip(".") or f"the host does not answer: {last_line(text)}".rstrip(": ")
        return f"{target.executable} printed: {output or 'nothing'}"

    def _exec_without_agent(self, cmd: str, in_data: bytes | None, sudoable: bool) -> tuple[int, bytes, bytes]:
        """Run a command with a separate pct call, for a container without python3."""
        def run(argv: list[bytes], popen: dict[str, Any]) -> tuple[int, bytes, bytes]:
            return run_ssh(argv, in_data, None, popen)

        status, out, err = self._with_ssh(self._command(f"printf '{ENTERED}\\n'; {cmd}"), run)
        before, entered, out = out.partition(f"{ENTERED}\n".encode())
        if not entered:
            raise AnsibleConnectionFailure(self._entry_error(status, (err + before).decode(errors="replace")))
        return status, as_text(self._without_become_marker(out) if sudoable else out), as_text(err)

    def _entry_error(self, status: int, text: str) -> str:
        """Return the message for output of ssh, sudo, pct or LXC when the container was not entered."""
        target = self._target()
        display.vvv(f"PCT: refused, status {status}: {text}", host=self.host)
        message = explain(text, target)
        if message and self.get_option("pct_method") == "lxc-attach":
            # LXC reports a stopped and a missing container alike; pct status tells them apart
            message = explain(self._container_state(), target) or message
        if message:
            return message
        detail = last_line(text) or f"exit status {status}, no message"
        return f"Could not enter container {target.vmid} on {target.host}: {detail} ({self._container_state()})"

    def _without_become_marker(self, out: bytes) -> bytes:
        """Remove the line that become plugins print on success."""
        if not (self.become and getattr(self.become, "success", None)):
            return out
        lines = out.splitlines(True)
        return b"".join(line for line in lines if not self.become.check_success(line))


def run_ssh(
    argv: list[bytes], data: bytes | None, seconds: float | None, popen: dict[str, Any]
) -> tuple[int, bytes, bytes]:
    """Run ssh until it exits; return (status, stdout, stderr).

    Raises:
        TimeoutExpired: it took longer than `seconds`, for example over a dead shared login.
    """
    # files, because a ControlMaster in the background would keep a pipe open
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        done = subprocess.run(argv, input=data, stdin=None if data is not None else subprocess.DEVNULL,
                              stdout=out, stderr=err, timeout=seconds, check=False, **popen)
        for stream in (out, err):
            stream.seek(0)
        return done.returncode, out.read(), err.read()


def as_text(data: bytes) -> bytes:
    """Return the output as valid UTF-8; Ansible's display fails on other bytes."""
    return data.decode("utf-8", errors="replace").encode()
