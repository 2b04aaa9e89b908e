"""Connection plugin `pct`: ssh to a Proxmox host, then `pct exec` into one of its containers."""
from __future__ import annotations

DOCUMENTATION = """
name: pct
short_description: work inside an LXC container of a Proxmox host, through ssh and pct exec
version_added: "1.0.0"
author: dflash-ansible contributors
description:
  - Logs in to the Proxmox host as the builtin ssh connection does, and runs everything as root inside container
    O(pct_vmid) through C(pct exec), or C(lxc-attach).
  - One C(pct) call serves a whole task, with all the commands and files that the task needs, and the tasks that
    follow it within O(pct_persist) seconds.
  - Commands start from a fixed environment; no variable of the host or of the login comes along.
  - Files are copied with a checksum, under a temporary name and then renamed, a piece at a time. They belong to root
    of the container, unprivileged or not; a file that is replaced keeps its owner and mode.
  - O(remote_user) is the login on the host; C(become) works inside the container.
options:
  pct_vmid:
    description: Number of the container, as C(pct list) on the host shows it.
    type: str
    required: true
    vars:
      - name: pct_vmid
  pct_method:
    description:
      - V(pct) asks Proxmox, which knows the container and says what is wrong with it.
      - V(lxc-attach) goes to LXC at once and spares the start-up of pct in each task.
    type: str
    choices: [pct, lxc-attach]
    default: pct
    vars:
      - name: pct_method
  pct_executable:
    description: Where pct is on the host.
    type: str
    default: /usr/sbin/pct
    vars:
      - name: pct_executable
  pct_sudo:
    description: Whether the login on the host becomes root through sudo, without a password. For a login that is
      not root.
    type: bool
    default: false
    vars:
      - name: pct_sudo
  pct_timeout:
    description: Seconds within which the container must answer when a task begins.
    type: float
    default: 30
    vars:
      - name: pct_timeout
  pct_persist:
    description:
      - Seconds for which the way into the container stays open after a task, so that the next one needs no C(pct)
        call of its own; what ControlPersist is for logins. It is kept by a small process of this user, behind a
        socket in O(control_path_dir).
      - V(0) ends it with each task, which then costs one C(pct) call.
    type: float
    default: 60
    vars:
      - name: pct_persist
extends_documentation_fragment:
  - pct_ssh
notes:
  - The host's key is checked, as ssh does by default.
  - Copies need python3 in the container; without it only plain commands work, one C(pct) call each.
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

from dflash_controller.pct_channel import AGENT_WORDS, Channel, ChannelLost, ChannelRefused, ChannelSilent, NoPython
from dflash_controller.pct_login import first_login
from dflash_ops.core.errors import OpsError
from dflash_ops.proxmox.pct_command import check_vmid, pct_command
from dflash_ops.proxmox.pct_errors import Place, explain, explain_loss, explain_silence, last_line

WAY = (
    "host", "port", "remote_user", "pct_vmid", "pct_method", "pct_executable", "pct_sudo",
    "private_key_file", "ssh_executable", "ssh_args", "ssh_common_args", "ssh_extra_args", "host_key_checking",
)
# a command without an agent prints this first: what follows is its own, what comes without it is the way's
ENTERED = "dflash-pct: entered"
LOOK_S = 25  # how long the host may take to say how a container is, for a message
SSH_FAILED = 255
display = Display()
T = TypeVar("T")


class Connection(ssh.Connection):
    """Three places: the controller (here), the Proxmox host (ssh logs in), the container (everything happens).

    put_file takes a file of the controller to the container, fetch_file brings one from the container to the
    controller; the host's disk sees neither. The parent builds ssh's command line, keeps its ControlMaster and
    knows passwords and keys; ours is what travels through it.
    """

    transport = "pct"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._channel: Channel | None = None
        self._channel_way: tuple[Any, ...] = ()
        self._has_python = True

    # ---- what Ansible calls --------------------------------------------------------------------------------

    def exec_command(self, cmd: str, in_data: bytes | None = None, sudoable: bool = True) -> tuple[int, bytes, bytes]:
        """Run a command inside the container; return (rc, stdout, stderr)."""
        self._settle()
        if self._has_python:
            try:
                display.vvv(f"PCT: EXEC in {self._place().vmid}: {cmd}", host=self.host)
                status, out, err = self._use(lambda channel: channel.run(cmd, in_data))
                out = self._without_become_marker(out) if sudoable else out
                return status, as_text(out), as_text(err)
            except NoPython:
                self._has_python = False
        return self._exec_once(cmd, in_data, sudoable)

    def put_file(self, in_path: str, out_path: str) -> None:
        """Copy a file of the controller into the container."""
        self._settle()
        display.vvv(f"PCT: PUT {in_path} TO {out_path} in {self._place().vmid}", host=self.host)
        if not Path(in_path).is_file():
            raise AnsibleFileNotFound(f"{in_path} is no file on the controller")
        self._copy(lambda channel: channel.put(Path(in_path), out_path))

    def fetch_file(self, in_path: str, out_path: str) -> None:
        """Copy a file of the container to the controller."""
        self._settle()
        display.vvv(f"PCT: FETCH {in_path} TO {out_path} from {self._place().vmid}", host=self.host)
        self._copy(lambda channel: channel.get(in_path, Path(out_path)))

    def reset(self) -> None:
        """Forget the way into the container, also one that an earlier task left, and the login."""
        self._settle()
        if self._channel is None:
            self._channel = Channel.borrow(self._meeting_place(), timeout_s=1)
        if self._channel:
            self._channel.busy = True  # never lent again
        self._close_channel()
        super().reset()

    def close(self) -> None:
        """Leave the way into the container to the next task, or end it."""
        idle_s = float(self.get_option("pct_persist")) if self._channel else 0
        if self._channel and idle_s > 0:
            self._channel.close(leave_at=self._meeting_place(), idle_s=idle_s)
            self._channel = None
        self._close_channel()
        super().close()

    # ---- the channel ---------------------------------------------------------------------------------------

    def _settle(self) -> None:
        """Read the options that the parent keeps as attributes, and check ours before anything is sent."""
        self.host = self.get_option("host") or self._play_context.remote_addr
        try:
            check_vmid(self.get_option("pct_vmid"))
        except OpsError as error:
            raise AnsibleError(str(error)) from None

    def _place(self) -> Place:
        return Place(
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

    def _use(self, action: Callable[[Channel], T]) -> T:
        """Do something with the open channel; a broken one becomes a message with the container's state."""
        channel = self._open_channel()
        try:
            return action(channel)
        except ChannelLost as loss:
            self._close_channel()
            place, text = self._place(), str(loss)
            message = explain(text, place) or explain_loss(place, self._look(), text)
            # `from None`: Ansible would append the raw words to the message; -vvv shows them
            display.vvv(f"PCT: lost: {text}", host=self.host)
            raise AnsibleConnectionFailure(message) from None

    def _copy(self, action: Callable[[Channel], None]) -> None:
        try:
            self._use(action)
        except NoPython:
            place = self._place()
            raise AnsibleError(
                f"Container {place.vmid} on {place.host} has no python3, and copies need it. Remedy: install it there,"
                " for example with a raw task: apt-get install -y python3"
            ) from None
        except (OpsError, OSError) as error:
            raise AnsibleError(str(error)) from None

    def _open_channel(self) -> Channel:
        """Return the channel of this task, opened anew when there is none or the options name another way."""
        way = self._way()
        if self._channel and self._channel_way == way and self._channel.usable():
            return self._channel
        self._close_channel()
        attempts = int(self.get_option("reconnection_retries")) + 1
        for attempt in range(attempts):
            try:
                self._channel, self._channel_way = self._start_channel(), way
                self._connected = True
                return self._channel
            except AnsibleConnectionFailure as failure:
                if attempt + 1 == attempts:
                    raise
                display.vv(f"PCT: attempt {attempt + 1} of {attempts}: {failure}", host=self.host)
                time.sleep(min(2**attempt - 1, 30))
        raise AssertionError("the loop above returns or raises")

    def _way(self) -> tuple[Any, ...]:
        """Return the options that decide where a channel leads and as whom."""
        return tuple(self.get_option(name) for name in WAY)

    def _meeting_place(self) -> Path:
        """Return the socket at which tasks of this user that go the same way find the open channel."""
        folder = unfrackpath(self.get_option("control_path_dir"))
        makedirs_safe(folder, 0o700)
        return Path(folder) / f"pct-{hashlib.sha256(repr(self._way()).encode()).hexdigest()[:16]}"

    def _start_channel(self) -> Channel:
        place, limit = self._place(), float(self.get_option("pct_timeout"))
        if float(self.get_option("pct_persist")) > 0:
            borrowed = Channel.borrow(self._meeting_place(), timeout_s=limit)
            if borrowed:
                return borrowed
        try:
            return self._launch(limit)
        except ChannelSilent:
            raise AnsibleConnectionFailure(explain_silence(place, limit, self._look())) from None
        except ChannelRefused as refusal:
            raise AnsibleConnectionFailure(self._why_not_entered(refusal.status, refusal.text)) from None

    def _launch(self, limit: float) -> Channel:
        """Start an agent through ssh. Where no login is shared yet, others to the same host wait a moment for ours."""
        seconds = limit + float(self.get_option("timeout"))

        def start(argv: list[bytes], popen: dict[str, Any]) -> Channel:
            with first_login(self._shared_login()):
                return Channel.open(argv, timeout_s=seconds, **popen)

        return self._through_ssh(self._command(AGENT_WORDS), start)

    @ssh._clean_shm
    def _through_ssh(self, remote: str, start: Callable[[list[bytes], dict[str, Any]], T]) -> T:
        """Call `start` with the parent's ssh words for a remote line, and what its way of giving a password needs."""
        argv = self._build_command(self.get_option("ssh_executable"), "ssh", "-T", self.host, remote)
        popen: dict[str, Any] = self._init_shm()
        pipe = self.sshpass_pipe if argv[0] == b"sshpass" else None
        if pipe:
            os.write(pipe[1], str(self.get_option("password")).encode() + b"\n")
            popen["pass_fds"] = pipe
        display.vvvv("PCT: " + " ".join(shlex.quote(word.decode(errors="replace")) for word in argv), host=self.host)
        try:
            return start(argv, popen)
        finally:
            for end in pipe or ():
                os.close(end)

    def _shared_login(self) -> Path | None:
        """Return the socket of ssh's ControlMaster; None where ssh alone knows it, or shares nothing."""
        folder = unfrackpath(self.get_option("control_path_dir"))
        path = self.control_path % {"directory": folder} if self.control_path else ""
        return Path(path) if path and "%" not in path else None

    def _close_channel(self) -> None:
        if self._channel:
            self._channel.close()
        self._channel = None

    # ---- around it -----------------------------------------------------------------------------------------

    def _look(self) -> str:
        """Return what the host says about the container, for a message; never raises."""
        place = self._place()
        ask = (
            f"timeout {LOOK_S - 5} {'sudo -n ' if self.get_option('pct_sudo') else ''}"
            f"{shlex.quote(place.executable)} status {place.vmid} 2>&1; "
            f"grep -s '^lock:' /etc/pve/lxc/{place.vmid}.conf"
        )
        try:
            status, out, err = self._through_ssh(ask, lambda argv, popen: run_ssh(argv, None, LOOK_S, popen))
        except (OSError, subprocess.TimeoutExpired):
            return "the host does not answer"
        text = (out + err).decode(errors="replace")
        said = ", ".join(line.strip() for line in text.splitlines() if line.strip())
        if status == SSH_FAILED:
            cause = (explain(text, place) or "").partition(" Remedy: ")[0]
            return cause.rstrip(".") or f"the host does not answer: {last_line(text)}".rstrip(": ")
        return f"{place.executable} says: {said or 'nothing'}"

    def _exec_once(self, cmd: str, in_data: bytes | None, sudoable: bool) -> tuple[int, bytes, bytes]:
        """Run a command with a pct call of its own: the way into a container without python3."""
        def run(argv: list[bytes], popen: dict[str, Any]) -> tuple[int, bytes, bytes]:
            return run_ssh(argv, in_data, None, popen)

        status, out, err = self._through_ssh(self._command(f"printf '{ENTERED}\\n'; {cmd}"), run)
        before, entered, out = out.partition(f"{ENTERED}\n".encode())
        if not entered:
            raise AnsibleConnectionFailure(self._why_not_entered(status, (err + before).decode(errors="replace")))
        return status, as_text(self._without_become_marker(out) if sudoable else out), as_text(err)

    def _why_not_entered(self, status: int, text: str) -> str:
        """Return the message for what ssh, sudo, pct or LXC printed when the way ended before the container."""
        place = self._place()
        display.vvv(f"PCT: refused, status {status}: {text}", host=self.host)
        message = explain(text, place)
        if message and self.get_option("pct_method") == "lxc-attach":
            # LXC says the same of a stopped container and of one that does not exist; Proxmox knows
            message = explain(self._look(), place) or message
        if message:
            return message
        said = last_line(text) or f"exit status {status}, no message"
        return f"Could not enter container {place.vmid} on {place.host}: {said} ({self._look()})"

    def _without_become_marker(self, out: bytes) -> bytes:
        """Drop the line by which become plugins show that they succeeded."""
        if not (self.become and getattr(self.become, "success", None)):
            return out
        lines = out.splitlines(True)
        return b"".join(line for line in lines if not self.become.check_success(line))


def run_ssh(
    argv: list[bytes], data: bytes | None, seconds: float | None, popen: dict[str, Any]
) -> tuple[int, bytes, bytes]:
    """Run one ssh to its end; return (status, stdout, stderr).

    Raises:
        TimeoutExpired: it took longer than `seconds`, for example over a shared login that died unnoticed.
    """
    # files, since a ControlMaster that stays in the background keeps a pipe open for good
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        done = subprocess.run(argv, input=data, stdin=None if data is not None else subprocess.DEVNULL,
                              stdout=out, stderr=err, timeout=seconds, check=False, **popen)
        for stream in (out, err):
            stream.seek(0)
        return done.returncode, out.read(), err.read()


def as_text(data: bytes) -> bytes:
    """Return UTF-8 whatever a command printed; Ansible's display breaks on other bytes."""
    return data.decode("utf-8", errors="replace").encode()
