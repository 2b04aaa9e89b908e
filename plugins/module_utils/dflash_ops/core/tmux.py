"""Private tmux server: separate socket and environment, exact session names, and only sessions that we marked."""

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
SOCKET_LIMIT = 100  # bytes; sun_path holds 107 and tmux appends to the path during startup
CLIENT_SECONDS = 20


@dataclasses.dataclass(frozen=True)
class Session:
    """Tmux session.

    Args:
        name: exact name.
        session_id: tmux's id such as `$3`, which never matches by prefix.
        run_id: the run it was started for; empty for a foreign session.
    """

    name: str
    session_id: str
    run_id: str


def check_name(name: str) -> str:
    """Return `name` if tmux keeps it unchanged; it silently replaces `.` and `:` by `_`.

    Raises:
        OpsError: tmux would change or misread the name.
    """
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
        """Return the command line for this server, which reads no tmux.conf."""
        return [self.binary, "-S", str(self.socket), "-f", os.devnull, *arguments]

    def attach_command(self, name: str) -> str:
        """Return the command with which a person attaches to session `name`."""
        return f"tmux -S {shlex.quote(str(self.socket))} attach -t '={name}'"

    def sessions(self) -> list[Session]:
        """Return the sessions of this server; empty when it is not running."""
        form = "\t".join(("#{session_name}", "#{session_id}", "#{" + MARK + "}"))
        done = self._call("list-sessions", "-F", form)
        if done.returncode != 0:
            return []
        rows = (line.split("\t") for line in done.stdout.splitlines())
        return [Session(*row) for row in rows if len(row) == 3]

    def find(self, name: str) -> Session | None:
        """Return the session with exactly this name."""
        return next((session for session in self.sessions() if session.name == name), None)

    def start(self, name: str, argv: Sequence[str], *, run_id: str, folder: Path) -> Session:
        """Start a detached session that runs `argv` and has our mark.

        Raises:
            OpsError: the name is in use, the socket path is too long, or tmux fails.
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
                remedy=f"try it manually: {' '.join(self.command('new-session', '-s', name))}",
            )
        return Session(name=name, session_id=session_id, run_id=run_id)

    def end(self, session: Session) -> bool:
        """Kill a session that has our mark; return whether it is gone."""
        found = self.find(session.name)
        if found is None or not found.run_id:
            return found is None
        self._call("kill-session", "-t", found.session_id)
        return self.find(session.name) is None

    def name_conflict(self, session: Session) -> OpsError:
        """Return the error for an existing session with the requested name, which is ours or a foreign one."""
        if session.run_id:
            return OpsError(
                f"tmux session {session.name} already runs {session.run_id}.",
                remedy="stop it with playbooks/stop.yml or replace it with relaunch.yml",
            )
        return OpsError(
            f"A tmux session named {session.name} exists on {self.socket} and was not started by a launch. "
            "It was not changed.",
            remedy=f"close it ({self.attach_command(session.name)}) or set training_run_session to another name",
        )

    def _check_socket(self) -> None:
        length = len(os.fsencode(self.socket))
        if length > SOCKET_LIMIT:
            raise OpsError(
                f"dflash_root is too long for a tmux socket: {self.socket} has {length} bytes, "
                f"at most {SOCKET_LIMIT} are possible.",
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
                remedy="check whether its server process is stopped (state T) and kill it by its pid",
            ) from error
