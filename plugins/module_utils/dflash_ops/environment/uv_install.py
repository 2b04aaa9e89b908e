"""Run uv, print its progress, and retry after network failures."""

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

REPORT_SECONDS = 5.0
# Messages of uv after its own retries were exhausted.
RETRIES_EXHAUSTED = re.compile(r"failed after \d+ retries|error decoding response body|error sending request")
# Pauses before a call is repeated after a network failure; uv has already retried each file several times.
NETWORK_PAUSES = (5.0, 20.0)
NETWORK = re.compile(
    r"error sending request|timed out|dns error|connection (reset|refused|closed)|failed to (fetch|download)",
    re.IGNORECASE,
)


def uv_environment(cache: Path) -> dict[str, str]:
    """Return uv's environment variables: no configuration file, no Python downloads, the system's certificates.

    uv copies files out of its cache: with hard links, an edit in an environment would change the cache. uv's `clone`
    mode falls back to hard links on file systems without reflinks.
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
    """Return the megabytes that a process has written so far, to any file."""
    try:
        text = Path(f"/proc/{pid}/io").read_text()
    except OSError:
        return 0
    match = re.search(r"^wchar: (\d+)", text, re.MULTILINE)
    return int(match[1]) >> 20 if match else 0


class Uv:
    """Runner of uv commands. Each call has one thread that reads uv's output and ends with the call."""

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
        env_vars: Mapping[str, str] | None = None,
        watch: Path | None = None,
        total: int = 0,
    ) -> None:
        """Run uv; repeat the call after a network failure (complete downloads stay in the cache).

        Args:
            arguments: uv's arguments.
            what: the activity, for messages.
            env_vars: additional environment variables.
            watch: site-packages folder whose packages are counted for the progress lines.
            total: number of packages to expect there.

        Raises:
            OpsError: uv failed; the message has its output.
        """
        for pause in (*NETWORK_PAUSES, None):
            code = self._run_once(arguments, env_vars or {}, what, watch, total)
            if code == 0:
                return
            if pause is None or not RETRIES_EXHAUSTED.search("\n".join(self.output)):
                raise failure(what, code, self.output)
            self.progress.say(f"{what}: the network failed ({last_line(self.output)}); retrying in {pause:g} s")
            time.sleep(pause)

    def _run_once(
        self, arguments: Sequence[str], env_vars: Mapping[str, str], what: str, watch: Path | None, total: int
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
            env={**uv_environment(self.cache), **env_vars},
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
        """Report progress until the child closes its output, then wait for its exit."""
        reported = time.monotonic()
        while reader.is_alive():
            reader.join(0.1)
            if watch is None:
                continue
            if time.monotonic() - reported < REPORT_SECONDS:
                if time.monotonic() - self.progress.written >= self.progress.min_interval:
                    self.progress.update(self._state(child, what, watch, total))
                continue
            reported = time.monotonic()
            done = len(list(watch.glob("*.dist-info")))
            self.progress.say(self._state(child, what, watch, total), done=done, total=total)
        child.wait()

    def _state(self, child: subprocess.Popen[str], what: str, watch: Path, total: int) -> str:
        done = len(list(watch.glob("*.dist-info")))
        written = f"{written_megabytes(child.pid)} MB written"
        # uv installs packages only after all are downloaded and unpacked
        step = f"{done}/{total} packages" if done else "downloading and unpacking"
        return f"{what}: {step}, {written}"


def last_line(output: Sequence[str]) -> str:
    """Return the last line that is not empty, shortened to 160 characters."""
    return next((line.strip() for line in reversed(output) if line.strip()), "no output")[:160]


def failure(what: str, code: int, output: Sequence[str]) -> OpsError:
    """Return the error for a failed call, with uv's output and a remedy."""
    text = "\n".join(line for line in output if line.strip())[-3000:]
    if "hash" in text.lower() and "mismatch" in text.lower():
        remedy = "the downloaded file differs from the lockfile's: download it again, or ask who changed it"
    elif NETWORK.search(text):
        remedy = (
            "run it again when the network is back; complete downloads are kept (python_env_index_urls names a mirror)"
        )
    elif "no solution" in text.lower() or "not found in the" in text.lower():
        remedy = (
            "a source lacks this version for this Python: check python_env_index_urls and python_env_find_links"
        )
    else:
        remedy = "read uv's message; the environment in use was not changed"
    return OpsError(f"{what} failed (uv exit code {code}): {text}", remedy=remedy)
