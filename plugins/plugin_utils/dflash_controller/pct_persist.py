"""Keep the connection into a container open between tasks, as ssh's ControlPersist keeps a login.

A finished task passes its open pipes to a small holder process. The next task of any play borrows them through a Unix
socket in the user's control folder; the data itself never passes through the holder. The holder has no owner. It exits
when nothing borrows the pipes for a while, when the agent is gone, and when a borrower dies while it uses them.

    python3 -IS pct_persist.py SOCKET IDLE_S LISTENER TO_AGENT FROM_AGENT ERRORS
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

BORROWED, RETURNED = b"t", b"r"
ANSWER_S = 0.5  # wait for a holder that is starting or busy with another borrower


class BorrowedPipes:
    """Pipes borrowed from a holder: (to_agent, from_agent, errors)."""

    def __init__(self, peer: socket.socket, handles: Sequence[int]) -> None:
        self.peer = peer
        self.handles = handles

    def give_back(self, *, reusable: bool) -> None:
        """Return the pipes to the holder; when they are not reusable, the holder closes its own and exits."""
        with contextlib.suppress(OSError):
            if reusable:
                self.peer.sendall(RETURNED)
        self.peer.close()


def borrow(path: Path) -> BorrowedPipes | None:
    """Return the pipes of the holder at `path`; None without a holder or when its pipes are in use."""
    peer = socket.socket(socket.AF_UNIX)
    peer.settimeout(ANSWER_S)
    try:
        peer.connect(str(path))
        _message, handles, _flags, _address = socket.recv_fds(peer, 1, 3)
        if len(handles) == 3:
            peer.sendall(BORROWED)
            return BorrowedPipes(peer, handles)
    except OSError:
        pass
    peer.close()
    return None


def start_holder(path: Path, handles: Sequence[int], idle_s: float) -> bool:
    """Start a holder for the pipes; return False when another running holder uses `path`."""
    listener = socket.socket(socket.AF_UNIX)
    with listener:
        if not bind(listener, path):
            return False
        passed = [listener.fileno(), *handles]
        subprocess.Popen(
            [sys.executable, "-IS", __file__, str(path), str(idle_s), *map(str, passed)],
            pass_fds=passed, start_new_session=True, cwd="/",
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )
    return True


def bind(listener: socket.socket, path: Path) -> bool:
    """Listen at `path`, accessible for this user only; replace a socket without a listener."""
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
    """Pass the pipes to one borrower after the other until there is a reason to exit."""
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
                borrowed = peer.recv(1) == BORROWED
            except OSError:
                continue
            if borrowed and received(peer) != RETURNED:
                return


def received(peer: socket.socket) -> bytes:
    """Return the borrower's last byte; empty when the borrower died."""
    try:
        return peer.recv(1)
    except OSError:
        return b""


def main() -> None:
    """Hold the pipes named by the arguments, and remove the socket at the end."""
    path, idle_s = Path(sys.argv[1]), float(sys.argv[2])
    listener = socket.socket(fileno=int(sys.argv[3]))
    inode = path.stat().st_ino
    try:
        hold(listener, [int(argument) for argument in sys.argv[4:7]], idle_s)
    finally:
        with contextlib.suppress(OSError):
            if path.stat().st_ino == inode:
                path.unlink()


if __name__ == "__main__":
    main()
