"""The controller's end of the agent in a container: commands and files over ssh's pipes.

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
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import IO, Any

from dflash_ops.core.errors import OpsError
from dflash_ops.proxmox import pct_agent
from dflash_ops.proxmox.pct_agent import GREETING, PIECE, read_frame, write_frame

from . import pct_persist
from .pct_sender import Sender, Writer, write_all

NO_PYTHON = b"\x00dflash-pct-agent: no python3\n"
BOOT = "import sys;b=sys.stdin.buffer;exec(b.read(int(b.readline())))"
# command for the container: start the agent, or report that python3 is missing
AGENT_COMMAND = (
    "/bin/sh",
    "-c",
    "command -v python3 >/dev/null 2>&1 || { printf '\\0dflash-pct-agent: no python3\\n'; exit 0; }; "
    f"exec python3 -IS -c '{BOOT}'",
)


class ChannelRefused(Exception):
    """The connection ended before the agent answered. Carries ssh's exit status and all output."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


class ChannelSilent(Exception):
    """The agent did not answer within the timeout."""


class ChannelLost(Exception):
    """The connection was lost while it was in use. Carries the last output on stderr."""


class NoPython(Exception):
    """The container has no python3, so the agent cannot run."""


class Channel:
    """Connection to the agent in one container, opened here or borrowed from a holder."""

    def __init__(self, to_agent: IO[bytes], from_agent: IO[bytes], errors: IO[bytes]) -> None:
        self.to_agent = to_agent
        self.from_agent = from_agent
        self.errors = errors
        self.process: subprocess.Popen[bytes] | None = None
        self.borrowed: pct_persist.BorrowedPipes | None = None
        self.busy = False
        self.last_errors = ""

    @classmethod
    def open(cls, command: Sequence[bytes], *, timeout_s: float, **popen: Any) -> Channel:
        """Start `command` (an ssh that runs AGENT_COMMAND) and wait for the agent's greeting.

        Raises:
            ChannelRefused: the connection ended before.
            ChannelSilent: there was no greeting within `timeout_s`.
            NoPython: the container has no python3.
        """
        # a file, because a ControlMaster in the background would keep a pipe open
        errors = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - closed by close()
        popen.setdefault("start_new_session", True)  # the connection may outlive this task
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
        """Return the channel that an earlier task left open at `path`; None when it does not answer."""
        borrowed = pct_persist.borrow(path)
        if borrowed is None:
            return None
        modes = ("wb", "rb", "rb")
        channel = cls(*(os.fdopen(handle, mode, buffering=0) for handle, mode in zip(borrowed.handles, modes)))
        channel.borrowed = borrowed
        if channel.answers(timeout_s):
            return channel
        channel.close()
        return None

    def answers(self, timeout_s: float) -> bool:
        """Ping the agent; return true when it answers."""
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
        """Send the agent's source; a broken pipe is reported when the greeting is read."""
        source = Path(pct_agent.__file__).read_bytes()
        try:
            write_all(self.to_agent, b"%d\n%s" % (len(source), source))
        except BrokenPipeError:
            return

    def await_greeting(self, process: subprocess.Popen[bytes], timeout_s: float) -> None:
        """Read up to the greeting and skip any output of the login before it."""
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
        """Run a command in the container's /bin/sh; return (rc, stdout, stderr)."""
        sent = [data[at:at + PIECE] for at in range(0, len(data), PIECE)] if data else []
        output: dict[bytes, list[bytes]] = {b"o": [], b"e": []}
        request = {"service": "run", "command": command, "has_input": data is not None}
        result = self.exchange(request, sent, lambda: b"", lambda letter, piece: output[letter].append(piece))
        return result["rc"], b"".join(output[b"o"]), b"".join(output[b"e"])

    def put(self, source: Path, target: str) -> None:
        """Copy a file from the controller to the container, piece by piece.

        Raises:
            OpsError: the file could not be copied; the target is unchanged.
        """
        digest = hashlib.sha256()

        def pieces(stream: IO[bytes]) -> Iterable[bytes]:
            while piece := read_piece(stream, source):
                digest.update(piece)
                yield piece

        with source.open("rb") as stream:
            found = os.fstat(stream.fileno())
            request = {"service": "put", "path": target, "mode": found.st_mode & 0o777, "size": found.st_size}
            result = self.exchange(request, pieces(stream), lambda: digest.hexdigest().encode(), discard)
        if "error" in result:
            raise OpsError(f"Could not copy {source}: {result['error']}")

    def get(self, source: str, target: Path) -> None:
        """Copy a file from the container to the controller, under a temporary name until it is complete.

        Raises:
            OpsError: the file could not be fetched; the target is unchanged.
        """
        digest = hashlib.sha256()
        # short enough for the limit of 255 bytes a name
        handle, part = tempfile.mkstemp(prefix=f".{target.name[:50]}.", suffix=".part", dir=target.parent)
        try:
            with os.fdopen(handle, "wb", buffering=0) as stream:

                def store(_letter: bytes, piece: bytes) -> None:
                    digest.update(piece)
                    write_piece(stream, piece, target)

                result = self.exchange({"service": "get", "path": source}, (), lambda: b"", store)
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
        on_output: Callable[[bytes, bytes], None],
    ) -> dict[str, Any]:
        """Send a request and its input from a thread, and read the answer meanwhile.

        Any error closes the channel, because the rest of the answer is still in the pipe.

        Args:
            request: the request as a JSON object.
            pieces: its input.
            final: returns the content of the end frame, once all pieces are sent.
            on_output: called with the letter and the bytes of each output frame.

        Raises:
            ChannelLost: the agent is gone.
        """
        sender = Sender(self.to_agent, request, pieces, final, self.end_input)
        self.busy = True
        sender.start()
        try:
            result = self.read_answer(on_output)
        except EOFError as error:
            self.close()
            sender.join()
            raise sender.source_error() or ChannelLost(self.last_errors) from error
        except BaseException:
            self.close()
            raise
        sender.answered = True
        sender.join()
        self.busy = False
        return result

    def read_answer(self, on_output: Callable[[bytes, bytes], None]) -> dict[str, Any]:
        """Pass output frames to `on_output` and return the result.

        Raises:
            EOFError: the agent is gone.
        """
        while True:
            try:
                letter, data = read_frame(self.from_agent)
            except OSError as error:
                raise EOFError(str(error)) from error
            if letter == b"x":
                result: dict[str, Any] = json.loads(data)
                return result
            on_output(letter, data)

    def end_input(self) -> None:
        """Close the agent's input, also in the holder, so that the agent exits while its answer is awaited."""
        if self.borrowed:
            self.borrowed.give_back(reusable=False)
        with contextlib.suppress(OSError):
            self.to_agent.close()

    @property
    def closed(self) -> bool:
        """True after close()."""
        return self.errors.closed

    def usable(self) -> bool:
        """Return true when the channel is open, and was not closed by the agent between two requests."""
        if self.closed:
            return False
        with selectors.DefaultSelector() as selector:
            selector.register(self.from_agent, selectors.EVENT_READ)
            return not selector.select(0)

    def error_text(self) -> str:
        """Return the last output of ssh and pct on stderr, without moving the file position."""
        size = os.fstat(self.errors.fileno()).st_size
        return os.pread(self.errors.fileno(), 8192, max(0, size - 8192)).decode(errors="replace")

    def close(self, *, keep_at: Path | None = None, idle_s: float = 0) -> None:
        """Close the channel, which ends the agent; with `keep_at`, keep it open there for the next task.

        A borrowed channel is given back to its holder. A channel with an unfinished request is never kept.

        Args:
            keep_at: path of the holder's socket.
            idle_s: seconds after which the holder exits when nothing borrows the channel.
        """
        if self.closed:
            return
        streams = (self.to_agent, self.from_agent, self.errors)
        kept = False
        if self.borrowed:
            self.borrowed.give_back(reusable=not self.busy)
            kept = not self.busy
        elif keep_at and not self.busy:
            kept = pct_persist.start_holder(keep_at, [stream.fileno() for stream in streams], idle_s)
        self.last_errors = self.error_text()
        for stream in streams[:2]:
            with contextlib.suppress(OSError):
                stream.close()
        if self.process and not kept:
            end_process(self.process)
            self.last_errors = self.error_text()
        self.errors.close()


def end_process(process: subprocess.Popen[bytes]) -> None:
    """Wait for an ssh whose input is closed; kill it when it does not exit."""
    try:
        process.wait(timeout=3)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def read_piece(stream: IO[bytes], source: Path) -> bytes:
    """Read the next piece of a file on the controller."""
    try:
        return stream.read(PIECE)
    except OSError as error:
        raise OpsError(f"Could not read {source} on the controller: {error.strerror or error}.") from error


def write_piece(stream: IO[bytes], piece: bytes, target: Path) -> None:
    """Write a piece of a fetched file."""
    try:
        write_all(stream, piece)
    except OSError as error:
        raise OpsError(f"Could not write {target} on the controller: {error.strerror or error}.") from error


def readable(seen: bytes) -> int:
    """Return the number of bytes that can be read without reading beyond the end of the greeting."""
    return len(GREETING) - len(seen) if GREETING.startswith(seen) else 1


def discard(_letter: bytes, _piece: bytes) -> None:
    """Ignore output."""


def current_umask() -> int:
    """Return this process's umask."""
    mask = os.umask(0o022)
    os.umask(mask)
    return mask
