"""One uv call, followed while it works."""

from __future__ import annotations

import re
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from ..core.errors import OpsError
from ..core.jobs import Progress, child_environment
from .sources import without_password

SAY_SECONDS = 5.0
# How uv says that the network failed it, after it had tried several times.
GAVE_UP = re.compile(r"failed after \d+ retries|error decoding response body|error sending request")
# Pauses before a call that the network broke is made again; uv itself has tried each file several times by then.
NETWORK_PAUSES = (5.0, 20.0)
NETWORK = re.compile(
    r"error sending request|timed out|dns error|connection (reset|refused|closed)|failed to (fetch|download)",
    re.IGNORECASE,
)


def uv_environment(cache: Path) -> dict[str, str]:
    """Return uv's explicit environment: no configuration file, no python of its own, the system's certificates.

    An edited environment must never reach the cache: uv copies. Its `clone` falls back to hard links without reflinks.
    """
    return child_environment(
        {
            "UV_CACHE_DIR": str(cache),
            "UV_NO_CONFIG": "1",
            "UV_PYTHON_DOWNLOADS": "never",
            "UV_SYSTEM_CERTS": "1",
            "UV_NO_PROGRESS": "1",
            "UV_HTTP_TIMEOUT": "90",
            "UV_LINK_MODE": "copy",
            "NO_COLOR": "1",
        }
    )


def written_megabytes(pid: int) -> int:
    """Return what a process has written so far, downloads and copies alike, wherever to."""
    try:
        text = Path(f"/proc/{pid}/io").read_text()
    except OSError:
        return 0
    found = re.search(r"^wchar: (\d+)", text, re.MULTILINE)
    return int(found[1]) >> 20 if found else 0


class Uv:
    """Runs uv. Thread: one reader for its output. Ends with the call."""

    def __init__(self, program: Path, cache: Path, progress: Progress) -> None:
        self.program = program
        self.cache = cache
        self.progress = progress
        self.output: list[str] = []

    def run(
        self,
        arguments: Sequence[str],
        *,
        what: str,
        environment: Mapping[str, str] | None = None,
        watch: Path | None = None,
        total: int = 0,
    ) -> None:
        """Run uv with arguments and, beside its own, an environment; show how far `watch` (site-packages) is filled.

        What the network broke is done again after a pause: what was fetched whole is kept in the cache.

        Raises:
            OpsError: uv failed; with its own words and a remedy.
        """
        for pause in (*NETWORK_PAUSES, None):
            code = self._once(arguments, environment or {}, what, watch, total)
            if code == 0:
                return
            if pause is None or not GAVE_UP.search("\n".join(self.output)):
                raise failure(what, code, self.output)
            self.progress.say(f"{what}: the network failed ({last_words(self.output)}); again in {pause:g} s")
            time.sleep(pause)

    def _once(
        self, arguments: Sequence[str], environment: Mapping[str, str], what: str, watch: Path | None, total: int
    ) -> int:
        self.output = []
        child = subprocess.Popen(
            [str(self.program), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            cwd="/",
            env={**uv_environment(self.cache), **environment},
        )
        reader = threading.Thread(target=self._read, args=(child,), daemon=True)
        reader.start()
        try:
            self._follow(child, reader, what, watch, total)
        finally:
            if child.poll() is None:
                child.kill()
            child.wait()
            reader.join(timeout=5)
        return child.returncode

    def _read(self, child: subprocess.Popen[str]) -> None:
        assert child.stdout is not None
        for line in child.stdout:
            text = without_password(line.rstrip())
            self.output.append(text)
            print(text, flush=True)

    def _follow(
        self, child: subprocess.Popen[str], reader: threading.Thread, what: str, watch: Path | None, total: int
    ) -> None:
        """Say how far a child is until it has closed its output, and wait for its end."""
        said = time.monotonic()
        while reader.is_alive():
            reader.join(0.1)
            if watch is None:
                continue
            if time.monotonic() - said < SAY_SECONDS:
                if time.monotonic() - self.progress.written >= self.progress.min_interval:
                    self.progress.update(self._state(child, what, watch, total))
                continue
            said = time.monotonic()
            done = len(list(watch.glob("*.dist-info")))
            self.progress.say(self._state(child, what, watch, total), done=done, total=total)
        child.wait()

    def _state(self, child: subprocess.Popen[str], what: str, watch: Path, total: int) -> str:
        done = len(list(watch.glob("*.dist-info")))
        written = f"{written_megabytes(child.pid)} MB written"
        # uv puts packages in place only when all are fetched and unpacked
        return f"{what}: {done}/{total} packages, {written}" if done else f"{what}: fetching and unpacking, {written}"


def last_words(output: Sequence[str]) -> str:
    """Return the last line that says something, cut to fit a screen."""
    return next((line.strip() for line in reversed(output) if line.strip()), "no word")[:160]


def failure(what: str, code: int, output: Sequence[str]) -> OpsError:
    """Turn uv's last words into an error with a remedy."""
    words = "\n".join(line for line in output if line.strip())[-3000:]
    if "hash" in words.lower() and "mismatch" in words.lower():
        remedy = "the file at its source is not the one the lock names: fetch it again, or ask who changed it"
    elif NETWORK.search(words):
        remedy = (
            "run it again when the network is back; what was fetched is kept (python_env_index_urls names a mirror)"
        )
    elif "no solution" in words.lower() or "not found in the" in words.lower():
        remedy = "a source lacks this version for this python: see python_env_index_urls and python_env_find_links"
    else:
        remedy = "read uv's message; the environment in use was not touched"
    return OpsError(f"{what} failed (uv rc {code}): {words}", remedy=remedy)
