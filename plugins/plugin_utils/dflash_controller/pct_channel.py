"""The controller's end of one process inside a container: commands and files over ssh's pipes.

Owner: the connection plugin, for one task. Processes: one ssh. Threads: one while input is sent. Ends on close().
"""
from __future__ import annotations

import contextlib
import hashlib
import json
import os
import selectors
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import IO, Any

from dflash_ops.core.errors import OpsError
from dflash_ops.proxmox import pct_agent
from dflash_ops.proxmox.pct_agent import GREETING, PIECE, read_frame, write_frame

from . import pct_persist

NO_PYTHON = b"\x00dflash-pct-agent: no python3\n"
BOOT = "import sys;b=sys.stdin.buffer;exec(b.read(int(b.readline())))"
# words for the container: start the agent where there is a python3, and say so where there is none
AGENT_WORDS = (
    "/bin/sh",
    "-c",
    "command -v python3 >/dev/null 2>&1 || { printf '\\0dflash-pct-agent: no python3\\n'; exit 0; }; "
    f"exec python3 -IS -c '{BOOT}'",
)


class ChannelRefused(Exception):
    """The way into the container ended before the agent answered; carries ssh's exit status and all text."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


class ChannelSilent(Exception):
    """Nothing came back within the time allowed."""


class ChannelLost(Exception):
    """The way into the container broke while it was in use; carries the last words."""


class NoPython(Exception):
    """The container has no python3, so there is no agent."""


class Channel:
    """One agent in one container, started here or borrowed from a holder."""

    def __init__(self, to_agent: IO[bytes], from_agent: IO[bytes], errors: IO[bytes]) -> None:
        self.to_agent = to_agent
        self.from_agent = from_agent
        self.errors = errors
        self.process: subprocess.Popen[bytes] | None = None
        self.loan: pct_persist.Loan | None = None
        self.busy = False
        self.last_words = ""

    @classmethod
    def open(cls, command: Sequence[bytes], *, timeout_s: float, **popen: Any) -> Channel:
        """Start `command` (an ssh whose remote words are AGENT_WORDS) and wait for the agent's greeting."""
        # a file, since a ControlMaster that stays in the background keeps a pipe open for good
        errors = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - closed by close()
        popen.setdefault("start_new_session", True)  # it may outlive the task that starts it
        process: subprocess.Popen[bytes] = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, bufsize=0, **popen
        )
        assert process.stdin and process.stdout
        channel = cls(process.stdin, process.stdout, errors)
        channel.process = process
        try:
            channel.send_agent()
            channel.await_greeting(process, timeout_s)
        except BaseException:
            channel.busy = True
            channel.close()
            raise
        return channel

    @classmethod
    def borrow(cls, path: Path, *, timeout_s: float) -> Channel | None:
        """Return the channel that an earlier task left at `path`, when it still answers."""
        loan = pct_persist.borrow(path)
        if loan is None:
            return None
        modes = ("wb", "rb", "rb")
        channel = cls(*(os.fdopen(handle, mode, buffering=0) for handle, mode in zip(loan.handles, modes)))
        channel.loan = loan
        if channel.answers(timeout_s):
            return channel
        channel.close()
        return None

    def answers(self, timeout_s: float) -> bool:
        """Tell whether the agent is still there, by asking it."""
        self.busy = True
        try:
            write_frame(Writer(self.to_agent), b"R", b'{"service": "ping"}')
            write_frame(Writer(self.to_agent), b"E")
            with selectors.DefaultSelector() as selector:
                selector.register(self.from_agent, selectors.EVENT_READ)
                if not selector.select(timeout_s):
                    return False
            self.busy = read_frame(self.from_agent)[0] != b"x"
        except (EOFError, OSError):
            return False
        return not self.busy

    def send_agent(self) -> None:
        """Send the agent's text; a broken pipe shows as a refusal when its answer is read."""
        source = Path(pct_agent.__file__).read_bytes()
        try:
            write_everything(self.to_agent, b"%d\n%s" % (len(source), source))
        except BrokenPipeError:
            return

    def await_greeting(self, process: subprocess.Popen[bytes], timeout_s: float) -> None:
        """Read up to the greeting, past whatever a login prints; raise when it does not come."""
        seen = b""
        end = time.monotonic() + timeout_s
        with selectors.DefaultSelector() as selector:
            selector.register(self.from_agent, selectors.EVENT_READ)
            while GREETING not in seen:
                if NO_PYTHON in seen:
                    raise NoPython
                if not selector.select(max(0.0, end - time.monotonic())):
                    raise ChannelSilent
                piece = os.read(self.from_agent.fileno(), readable(seen))
                if not piece:
                    raise ChannelRefused(process.wait(), self.error_text() + seen.decode(errors="replace"))
                seen += piece

    def run(self, command: str, data: bytes | None) -> tuple[int, bytes, bytes]:
        """Run a line in the container's /bin/sh; return (rc, stdout, stderr)."""
        sent = [data[at:at + PIECE] for at in range(0, len(data), PIECE)] if data else []
        output: dict[bytes, list[bytes]] = {b"o": [], b"e": []}
        request = {"service": "run", "command": command, "has_input": data is not None}
        result = self.exchange(request, sent, lambda: b"", lambda letter, piece: output[letter].append(piece))
        return result["rc"], b"".join(output[b"o"]), b"".join(output[b"e"])

    def put(self, source: Path, target: str) -> None:
        """Copy a file of the controller into the container, a piece at a time."""
        digest = hashlib.sha256()

        def pieces(stream: IO[bytes]) -> Iterable[bytes]:
            while piece := read_piece(stream, source):
                digest.update(piece)
                yield piece

        with source.open("rb") as stream:
            found = os.fstat(stream.fileno())
            request = {"service": "put", "path": target, "mode": found.st_mode & 0o777, "size": found.st_size}
            result = self.exchange(request, pieces(stream), lambda: digest.hexdigest().encode(), ignore)
        if "error" in result:
            raise OpsError(f"Could not copy {source}: {result['error']}")

    def get(self, source: str, target: Path) -> None:
        """Copy a file of the container to the controller: beside `target` first, renamed when it is whole."""
        digest = hashlib.sha256()
        # a name has 255 bytes at most, of which a letter may take four
        handle, part = tempfile.mkstemp(prefix=f".{target.name[:50]}.", suffix=".part", dir=target.parent)
        try:
            with os.fdopen(handle, "wb", buffering=0) as stream:

                def take(_letter: bytes, piece: bytes) -> None:
                    digest.update(piece)
                    write_piece(stream, piece, target)

                result = self.exchange({"service": "get", "path": source}, (), lambda: b"", take)
            if "error" in result:
                raise OpsError(f"Could not fetch a file: {result['error']}")
            if digest.hexdigest() != result["sha256"]:
                raise OpsError(f"Could not fetch {source}: its checksum differs after the transfer.",
                               remedy="Fetch it again; if it is being written, wait until that has ended.")
            Path(part).chmod(0o666 & ~current_umask())
            os.replace(part, target)
        except BaseException:
            Path(part).unlink(missing_ok=True)
            raise

    def exchange(
        self,
        request: dict[str, Any],
        pieces: Iterable[bytes],
        final: Callable[[], bytes],
        take: Callable[[bytes, bytes], None],
    ) -> dict[str, Any]:
        """Send a request with its input from a thread while the answer is read here.

        Whatever ends it early closes the channel, since the rest of that answer is still under way in it.
        """
        sender = Sender(self.to_agent, request, pieces, final, self.end_input)
        self.busy = True
        sender.start()
        try:
            result = self.answer(take)
        except EOFError as error:
            self.close()
            sender.join()
            raise sender.own_error() or ChannelLost(self.last_words) from error
        except BaseException:
            self.close()
            raise
        sender.answered = True
        sender.join()
        self.busy = False
        return result

    def answer(self, take: Callable[[bytes, bytes], None]) -> dict[str, Any]:
        """Hand the answer's pieces to `take` and return its result; raise EOFError when the agent is gone."""
        while True:
            try:
                letter, data = read_frame(self.from_agent)
            except OSError as error:
                raise EOFError(str(error)) from error
            if letter == b"x":
                result: dict[str, Any] = json.loads(data)
                return result
            take(letter, data)

    def end_input(self) -> None:
        """End the agent while its answer is awaited: it ends with its input, which a holder keeps open too."""
        if self.loan:
            self.loan.end(intact=False)
        with contextlib.suppress(OSError):
            self.to_agent.close()

    @property
    def closed(self) -> bool:
        """Whether nothing can be asked of it any more."""
        return self.errors.closed

    def usable(self) -> bool:
        """Tell whether it may be asked: open, and not ended from the other side while nothing was asked."""
        if self.closed:
            return False
        with selectors.DefaultSelector() as selector:
            selector.register(self.from_agent, selectors.EVENT_READ)
            return not selector.select(0)

    def error_text(self) -> str:
        """Return the last of what ssh and pct printed on stderr, without moving their place in that file."""
        size = os.fstat(self.errors.fileno()).st_size
        return os.pread(self.errors.fileno(), 8192, max(0, size - 8192)).decode(errors="replace")

    def close(self, *, leave_at: Path | None = None, idle_s: float = 0) -> None:
        """End the agent by ending its input; or, with `leave_at`, leave it there for the next task.

        A borrowed channel goes back to its holder. One in which something is under way is never kept.
        """
        if self.closed:
            return
        streams = (self.to_agent, self.from_agent, self.errors)
        kept = False
        if self.loan:
            self.loan.end(intact=not self.busy)
            kept = not self.busy
        elif leave_at and not self.busy:
            kept = pct_persist.leave(leave_at, [stream.fileno() for stream in streams], idle_s)
        self.last_words = self.error_text()
        for stream in streams[:2]:
            with contextlib.suppress(OSError):
                stream.close()
        if self.process and not kept:
            end_process(self.process)
            self.last_words = self.error_text()
        self.errors.close()


def end_process(process: subprocess.Popen[bytes]) -> None:
    """Wait for an ssh whose input has ended; kill it when it does not follow."""
    try:
        process.wait(timeout=3)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


class Sender(threading.Thread):
    """Writes one request and its input. Owner: exchange(), which joins it."""

    def __init__(
        self,
        stream: IO[bytes],
        request: dict[str, Any],
        pieces: Iterable[bytes],
        final: Callable[[], bytes],
        give_up: Callable[[], None],
    ) -> None:
        super().__init__(daemon=True)
        self.stream = stream
        self.request = request
        self.pieces = pieces
        self.final = final
        self.give_up = give_up
        self.error: Exception | None = None
        self.answered = False

    def run(self) -> None:
        """Send everything, or all until the answer; keep an error for the owner, who would wait for one in vain."""
        writer = Writer(self.stream)
        try:
            write_frame(writer, b"R", json.dumps(self.request).encode())
            for piece in self.pieces:
                if self.answered:
                    break
                write_frame(writer, b"I", piece)
            write_frame(writer, b"E", self.final())
        except Exception as error:
            self.error = error
            self.give_up()

    def own_error(self) -> Exception | None:
        """Return what went wrong here, such as a source that cannot be read; None when the pipe was closed under us."""
        return None if isinstance(self.error, (OSError, ValueError)) else self.error


class Writer:
    """An unbuffered pipe whose write() writes everything."""

    def __init__(self, stream: IO[bytes]) -> None:
        self.stream = stream

    def write(self, data: bytes) -> None:
        """Write all of `data`."""
        write_everything(self.stream, data)

    def flush(self) -> None:
        """Nothing is held back."""


def write_everything(stream: IO[bytes], data: bytes) -> None:
    """Write all of `data` to a raw pipe."""
    view = memoryview(data)
    while view:
        view = view[stream.write(view) or 0:]


def read_piece(stream: IO[bytes], source: Path) -> bytes:
    """Read a piece of the controller's file."""
    try:
        return stream.read(PIECE)
    except OSError as error:
        raise OpsError(f"Could not read {source} on the controller: {error.strerror or error}.") from error


def write_piece(stream: IO[bytes], piece: bytes, target: Path) -> None:
    """Write a piece of a file that is fetched."""
    try:
        write_everything(stream, piece)
    except OSError as error:
        raise OpsError(f"Could not write {target} on the controller: {error.strerror or error}.") from error


def readable(seen: bytes) -> int:
    """Return how many bytes may be read without passing the greeting's end: what follows is the first answer's."""
    return len(GREETING) - len(seen) if GREETING.startswith(seen) else 1


def ignore(_letter: bytes, _piece: bytes) -> None:
    """Take nothing."""


def current_umask() -> int:
    """Return this process's umask."""
    mask = os.umask(0o022)
    os.umask(mask)
    return mask
