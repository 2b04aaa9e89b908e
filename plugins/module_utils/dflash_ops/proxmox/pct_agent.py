"""Agent in a container that runs commands and copies files for the connection plugin, over one pair of pipes.

The connection plugin sends this file's text to `python3 -IS -c` in the container and then exchanges frames with it.
The agent exits when its input ends, and leaves nothing behind. It uses only the standard library of Python 3.8 or
later and imports nothing of this package, because only this text is sent. The controller imports the frame functions.

A frame is one letter, a length of four bytes, and that many bytes.
    to the container    R request (JSON), I a piece of input, E end of input (SHA-256 in hex for a file)
    to the controller   o stdout, e stderr, x result (JSON)
"""
from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import select
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

GREETING = b"\x00dflash-pct-agent 1\n"
PIECE = 1 << 18
HEAD = struct.Struct(">cI")
LATE_OUTPUT_S = 2.0  # wait for output after a command exits, when a child of it keeps the pipe open
NOT_STARTED = 126  # exit code of a shell for a command that it could not run


def read_exactly(stream: IO[bytes], count: int) -> bytes:
    """Return `count` bytes.

    Raises:
        EOFError: the stream ends before.
    """
    pieces = []
    while count:
        piece = stream.read(count)
        if not piece:
            raise EOFError("the other end closed the pipe")
        pieces.append(piece)
        count -= len(piece)
    return b"".join(pieces)


def read_frame(stream: IO[bytes]) -> tuple[bytes, bytes]:
    """Return (letter, bytes)."""
    letter, length = HEAD.unpack(read_exactly(stream, HEAD.size))
    return letter, read_exactly(stream, length)


def write_frame(stream: Any, letter: bytes, data: bytes = b"") -> None:
    """Write one frame and flush."""
    stream.write(HEAD.pack(letter, len(data)) + data)
    stream.flush()


def write_result(stream: IO[bytes], **values: Any) -> None:
    """Write the last frame of an answer."""
    write_frame(stream, b"x", json.dumps(values).encode())


class Input:
    """Input frames of one request. `final` is the content of the end frame, None until it has arrived."""

    def __init__(self, stream: IO[bytes]) -> None:
        self.stream = stream
        self.final: bytes | None = None

    def __iter__(self) -> Iterator[bytes]:
        """Yield the pieces of input up to the end frame."""
        while self.final is None:
            letter, data = read_frame(self.stream)
            if letter == b"E":
                self.final = data
            else:
                yield data

    def drain(self) -> None:
        """Read and discard the rest."""
        for _ in self:
            pass


class Output:
    """Output frames of one command; closed once its result is written, so that late output is discarded."""

    def __init__(self, stream: IO[bytes]) -> None:
        self.stream = stream
        self.lock = threading.Lock()
        self.open = True

    def write(self, letter: bytes, piece: bytes) -> bool:
        """Forward a piece; return False when the output is closed."""
        with self.lock:
            if self.open:
                write_frame(self.stream, letter, piece)
            return self.open

    def finish(self, **values: Any) -> None:
        """Write the result and close the output."""
        with self.lock:
            self.open = False
            write_result(self.stream, **values)


class Pump(threading.Thread):
    """Forward one pipe of a command until it ends. Owner: run_command(), which calls drain()."""

    def __init__(self, letter: bytes, source: IO[bytes], output: Output) -> None:
        super().__init__(daemon=True)
        self.letter = letter
        self.source = source
        self.output = output
        self.count_lock = threading.Lock()
        self.received = self.sent = 0

    def run(self) -> None:
        """Forward piece by piece."""
        while True:
            select.select([self.source], [], [])
            with self.count_lock:
                piece = os.read(self.source.fileno(), PIECE)
                self.received += len(piece)
            if not piece or not self.output.write(self.letter, piece):
                return
            self.sent += len(piece)

    def drain(self, end: float) -> None:
        """Wait until the output left in the pipe by an exited command is sent, however slow the connection is.

        Wait for output of its children only until `end`.
        """
        with self.count_lock:
            total = self.received + bytes_waiting(self.source)
        while self.is_alive() and self.sent < total:
            self.join(0.05)
        self.join(max(0.0, end - time.monotonic()))


def bytes_waiting(pipe: IO[bytes]) -> int:
    """Return the number of bytes that can be read from a pipe without blocking."""
    return int(struct.unpack("i", fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)))[0])


def run_command(request: dict[str, Any], incoming: Input, outgoing: IO[bytes]) -> None:
    """Run a command in /bin/sh, feed its input, forward its output, and report its exit code."""
    output = Output(outgoing)
    try:
        process = start_command(request)
    except (OSError, ValueError) as error:
        incoming.drain()
        output.write(b"e", f"/bin/sh could not be started: {error}\n".encode(errors="replace"))
        output.finish(rc=NOT_STARTED)
        return
    assert process.stdout and process.stderr
    pumps = [Pump(b"o", process.stdout, output), Pump(b"e", process.stderr, output)]
    for pump in pumps:
        pump.start()
    feed(process.stdin, incoming)
    status = process.wait()
    end = time.monotonic() + LATE_OUTPUT_S
    for pump in pumps:
        pump.drain(end)
    output.finish(rc=status if status >= 0 else 128 - status)


def start_command(request: dict[str, Any]) -> subprocess.Popen[bytes]:
    """Start a shell for a command.

    Raises:
        OSError: the command is too long.
        ValueError: the command contains a NUL byte.
    """
    return subprocess.Popen(
        ["/bin/sh", "-c", request["command"]],
        stdin=subprocess.PIPE if request["has_input"] else subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )


def feed(target: IO[bytes] | None, incoming: Input) -> None:
    """Write input frames to a command; discard the rest once it has closed its input."""
    for data in incoming:
        if target and not target.closed:
            try:
                target.write(data)
                target.flush()
            except OSError:
                close_quietly(target)
    if target:
        close_quietly(target)


def close_quietly(stream: IO[bytes]) -> None:
    """Close a pipe whose reader may be gone."""
    with contextlib.suppress(OSError):
        stream.close()


def receive_file(request: dict[str, Any], incoming: Input, outgoing: IO[bytes]) -> None:
    """Write a file under a temporary name in its folder; rename it when its checksum matches.

    An error is sent before the rest of the file is read and discarded, so that the sender can stop.
    """
    path = Path(os.path.realpath(request["path"]))
    try:
        problem = check_target(path, request["size"])
        digest = "" if problem else store(path, request["mode"], incoming)
        if not problem and not digest:
            problem = f"the checksum of {path} differs after the transfer; nothing was changed, copy it again"
    except OSError as error:
        problem = f"{path}: {error.strerror or error}"
    if problem:
        write_result(outgoing, error=problem)
    else:
        write_result(outgoing, sha256=digest)
    incoming.drain()


def check_target(path: Path, size: int) -> str:
    """Return the reason why a file cannot be written here; empty when it can."""
    if path.is_dir():
        return f"{path} is a folder in the container; name the file"
    if path.exists() and not path.is_file():
        return f"{path} in the container is not a regular file"
    if not path.parent.is_dir():
        return f"the folder {path.parent} does not exist in the container; create it first"
    space = os.statvfs(path.parent)
    free = space.f_bavail * space.f_frsize
    if free < size:
        return f"{path} needs {size} bytes, but only {free} are free in {path.parent}; make room there"
    return ""


def store(path: Path, mode: int, incoming: Input) -> str:
    """Write the input to `path` atomically; return its SHA-256, empty when it does not match the sender's."""
    remove_stale_parts(path)
    part = path.with_name(part_prefix(path) + os.urandom(6).hex())
    handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        digest = hashlib.sha256()
        for data in incoming:
            write_all(handle, data)
            digest.update(data)
        if digest.hexdigest().encode() != incoming.final:
            return ""
        set_owner_and_mode(handle, path, mode)
        os.fsync(handle)
        os.replace(part, path)
        return digest.hexdigest()
    finally:
        with contextlib.suppress(FileNotFoundError):
            part.unlink()
        os.close(handle)


def part_prefix(path: Path) -> str:
    """Return the prefix of a file's temporary names, short enough for the limit of 255 bytes a name."""
    return f".{path.name[:50]}.pct-part-"


def remove_stale_parts(path: Path) -> None:
    """Remove temporary files of interrupted transfers to the same path: those that no process has locked."""
    for part in path.parent.iterdir():
        if not part.name.startswith(part_prefix(path)):
            continue
        with contextlib.suppress(OSError):
            handle = os.open(part, os.O_WRONLY | os.O_NOFOLLOW)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                part.unlink()
            finally:
                os.close(handle)


def write_all(handle: int, data: bytes) -> None:
    """Write every byte."""
    view = memoryview(data)
    while view:
        view = view[os.write(handle, view) :]


def set_owner_and_mode(handle: int, path: Path, mode: int) -> None:
    """Copy owner and mode of the replaced file; a new file belongs to root and gets `mode`."""
    owner, group = os.geteuid(), os.getegid()
    with contextlib.suppress(FileNotFoundError):
        old = path.stat()
        owner, group, mode = old.st_uid, old.st_gid, old.st_mode & 0o7777
    os.fchown(handle, owner, group)
    os.fchmod(handle, mode)


def send_file(request: dict[str, Any], incoming: Input, outgoing: IO[bytes]) -> None:
    """Send a file, then its checksum."""
    incoming.drain()
    path = Path(request["path"])
    if not path.is_file():
        reason = "is not a regular file" if path.exists() else "does not exist"
        write_result(outgoing, error=f"{path} {reason} in the container")
        return
    digest = hashlib.sha256()
    try:
        with path.open("rb") as source:
            while True:
                piece = source.read(PIECE)
                if not piece:
                    break
                write_frame(outgoing, b"o", piece)
                digest.update(piece)
    except OSError as error:
        write_result(outgoing, error=f"{path}: {error.strerror or error}")
        return
    write_result(outgoing, sha256=digest.hexdigest())


def answer_ping(_request: dict[str, Any], incoming: Input, outgoing: IO[bytes]) -> None:
    """Answer at once, which shows that the agent is running."""
    incoming.drain()
    write_result(outgoing)


SERVICES = {"run": run_command, "put": receive_file, "get": send_file, "ping": answer_ping}


def serve(incoming: IO[bytes], outgoing: IO[bytes]) -> None:
    """Answer requests one after the other until the input ends."""
    outgoing.write(GREETING)
    outgoing.flush()
    while True:
        try:
            letter, data = read_frame(incoming)
        except EOFError:
            return
        if letter != b"R":
            raise ValueError(f"expected a request, got {letter!r}")
        request = json.loads(data.decode())
        SERVICES[request["service"]](request, Input(incoming), outgoing)


def main() -> None:
    """Set umask and folder, then serve; a closed connection is a normal end."""
    os.umask(0o022)
    try:
        os.chdir(os.environ.get("HOME", "/"))
    except OSError:
        os.chdir("/")
    try:
        serve(sys.stdin.buffer, sys.stdout.buffer)
    except (EOFError, BrokenPipeError):
        os._exit(1)  # do not wait for pumps: nobody reads their output


if __name__ == "__main__":
    main()
