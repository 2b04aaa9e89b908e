"""Keeps the way into a container open between tasks, as ssh's ControlPersist keeps a login.

A task that is done hands its open pipes to this small process; the next task of any play borrows them through a
socket in the user's own control folder. The holder moves no data, it only lends. Owner: nobody; it ends by itself when
nobody borrows for a while, when the other end is gone, and when a borrower dies with the pipes in use.

    python3 -IS pct_holder.py SOCKET IDLE_S LISTENER TO_AGENT FROM_AGENT ERRORS
"""
from __future__ import annotations

import contextlib
import os
import select
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

TAKEN, RETURNED = b"t", b"r"
ANSWER_S = 0.5  # how long a borrower waits for a holder that is starting, or lending to another


class Loan:
    """Pipes borrowed from a holder: (to_agent, from_agent, errors). Give them back, or just drop them when broken."""

    def __init__(self, peer: socket.socket, handles: Sequence[int]) -> None:
        self.peer = peer
        self.handles = handles

    def end(self, *, intact: bool) -> None:
        """Return the pipes when nothing is under way in them; else the holder closes its own and ends."""
        with contextlib.suppress(OSError):
            if intact:
                self.peer.sendall(RETURNED)
        self.peer.close()


def borrow(path: Path) -> Loan | None:
    """Return the pipes that a holder keeps at `path`; None when there is none, or they are lent."""
    peer = socket.socket(socket.AF_UNIX)
    peer.settimeout(ANSWER_S)
    try:
        peer.connect(str(path))
        _message, handles, _flags, _address = socket.recv_fds(peer, 1, 3)
        if len(handles) == 3:
            peer.sendall(TAKEN)
            return Loan(peer, handles)
    except OSError:
        pass
    peer.close()
    return None


def leave(path: Path, handles: Sequence[int], idle_s: float) -> bool:
    """Start a holder for the pipes; False when `path` is taken by another that lives."""
    listener = socket.socket(socket.AF_UNIX)
    with listener:
        if not bind(listener, path):
            return False
        kept = [listener.fileno(), *handles]
        subprocess.Popen(
            [sys.executable, "-IS", __file__, str(path), str(idle_s), *map(str, kept)],
            pass_fds=kept, start_new_session=True, cwd="/",
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )
    return True


def bind(listener: socket.socket, path: Path) -> bool:
    """Listen at `path`, readable for this user only; a socket nobody listens at any more is replaced."""
    mask = os.umask(0o177)
    try:
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(ANSWER_S)
            try:
                probe.connect(str(path))
                return False
            except FileNotFoundError:
                pass
            except ConnectionRefusedError:
                path.unlink(missing_ok=True)
        listener.bind(str(path))
        listener.listen(8)
    except OSError:
        return False
    finally:
        os.umask(mask)
    return True


def hold(listener: socket.socket, handles: Sequence[int], idle_s: float) -> None:
    """Lend until there is a reason to end."""
    from_agent = handles[1]
    sources: list[socket.socket | int] = [listener, from_agent]
    while True:
        ready, _, _ = select.select(sources, [], [], idle_s)
        if not ready or from_agent in ready:
            return
        peer, _address = listener.accept()
        with peer:
            try:
                socket.send_fds(peer, [b"!"], list(handles))
                taken = peer.recv(1) == TAKEN
            except OSError:
                continue
            if taken and received(peer) != RETURNED:
                return


def received(peer: socket.socket) -> bytes:
    """Return the borrower's last word; empty when it died."""
    try:
        return peer.recv(1)
    except OSError:
        return b""


def main() -> None:
    """Hold what the arguments name; take the socket's name along at the end."""
    path, idle_s = Path(sys.argv[1]), float(sys.argv[2])
    listener = socket.socket(fileno=int(sys.argv[3]))
    ours = path.stat().st_ino
    try:
        hold(listener, [int(word) for word in sys.argv[4:7]], idle_s)
    finally:
        with contextlib.suppress(OSError):
            if path.stat().st_ino == ours:
                path.unlink()


if __name__ == "__main__":
    main()
