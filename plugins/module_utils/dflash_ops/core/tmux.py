"""A tmux server of our own: own socket, own environment, exact names, and only sessions that carry our mark."""

from __future__ import annotations

import dataclasses
import os
import re
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from .errors import OpsError

MARK = "@dflash_run_id"
NAME_RULE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,63}")
SOCKET_LIMIT = 100  # bytes; the kernel takes 107 in sun_path and tmux adds to it while it starts
CLIENT_SECONDS = 20


@dataclasses.dataclass(frozen=True)
class Session:
    """One tmux session.

    Args:
        name: its exact name.
        session_id: tmux's own id, like `$3`, which never matches by prefix.
        run_id: the run it was started for; empty when it is not ours.
    """

    name: str
    session_id: str
    run_id: str


def check_name(name: str) -> str:
    """Return `name` when tmux keeps it as it is; `.` and `:` would silently become `_`."""
    if not NAME_RULE.fullmatch(name):
        raise OpsError(
            f"training_run_session is {name!r}, which tmux would change or misread.",
            remedy="use letters, digits, - and _ (at most 64, not starting with -), for example dflash",
        )
    return name


@dataclasses.dataclass(frozen=True)
class Server:
    """The server behind one socket.

    Args:
        socket: absolute path of the socket, under `dflash_root`.
        binary: absolute path of tmux.
        environment: all that the server and what it starts inherits.
    """

    socket: Path
    binary: str
    environment: Mapping[str, str]

    def command(self, *arguments: str) -> list[str]:
        """Return the argv that speaks to this server and reads nobody's tmux.conf."""
        return [self.binary, "-S", str(self.socket), "-f", os.devnull, *arguments]

    def attach_command(self, name: str) -> str:
        """Return what a person types to see session `name`."""
        return f"tmux -S {shlex.quote(str(self.socket))} attach -t '={name}'"

    def sessions(self) -> list[Session]:
        """Return the sessions of this server; none when no server listens."""
        form = "\t".join(("#{session_name}", "#{session_id}", "#{" + MARK + "}"))
        done = self._call("list-sessions", "-F", form)
        if done.returncode != 0:
            return []
        rows = (line.split("\t") for line in done.stdout.splitlines())
        return [Session(*row) for row in rows if len(row) == 3]

    def find(self, name: str) -> Session | None:
        """Return the session of exactly this name."""
        return next((session for session in self.sessions() if session.name == name), None)

    def start(self, name: str, argv: Sequence[str], *, run_id: str, folder: Path) -> Session:
        """Start a detached session that runs `argv` and carries our mark.

        Raises:
            OpsError: the name is taken, the socket path is too long, or tmux refuses.
        """
        self._check_socket()
        existing = self.find(check_name(name))
        if existing is not None:
            raise self.name_conflict(existing)
        done = self._call(
            *("new-session", "-d", "-P", "-F", "#{session_id}", "-s", name, "-x", "200", "-y", "50", "-c", str(folder)),
            *("--", *argv),
            *(";", "set-option", "-t", f"={name}:", MARK, run_id),
            *(";", "set-option", "-t", f"={name}:", "history-limit", "50000"),
        )
        session_id = done.stdout.strip()
        if not session_id:
            raise OpsError(
                f"tmux could not start session {name}: {done.stderr.strip() or 'no reason given'}.",
                remedy=f"try by hand: {' '.join(self.command('new-session', '-s', name))}",
            )
        return Session(name=name, session_id=session_id, run_id=run_id)

    def end(self, session: Session) -> bool:
        """Kill one session that carries our mark; return whether it is gone."""
        found = self.find(session.name)
        if found is None or not found.run_id:
            return found is None
        self._call("kill-session", "-t", found.session_id)
        return self.find(session.name) is None

    def name_conflict(self, session: Session) -> OpsError:
        """Return the refusal for a session of our name: ours with its run, or somebody else's, left alone."""
        if session.run_id:
            return OpsError(
                f"tmux session {session.name} already runs {session.run_id}.",
                remedy="stop it with playbooks/stop.yml or replace it with relaunch.yml",
            )
        return OpsError(
            f"a tmux session named {session.name} stands on {self.socket} and was not started by a launch; "
            "it is left untouched.",
            remedy=f"close it ({self.attach_command(session.name)}) or set training_run_session to another name",
        )

    def _check_socket(self) -> None:
        length = len(os.fsencode(self.socket))
        if length > SOCKET_LIMIT:
            raise OpsError(
                f"dflash_root is too long for a tmux socket: {self.socket} has {length} bytes, "
                f"at most {SOCKET_LIMIT} work.",
                remedy="set dflash_root to a shorter path",
            )

    def _call(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        try:
            return subprocess.run(
                self.command(*arguments),
                env=dict(self.environment),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=CLIENT_SECONDS,
                check=False,
            )
        except FileNotFoundError as error:
            raise OpsError(f"tmux is missing: {self.binary}.", remedy="install the package tmux on the box") from error
        except subprocess.TimeoutExpired as error:
            raise OpsError(
                f"tmux on {self.socket} did not answer in {CLIENT_SECONDS} s.",
                remedy="look whether its server process is stopped (state T) and end it by its pid",
            ) from error
