"""Copies finished checkpoints to S3 in the background: retried, counted, never in the way of training."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dflash_trainer.checkpoint.store import INDEX

_ATTEMPTS = 5
_FIRST_DELAY = 2.0
_LAST_DELAY = 0.5
_CLOSE_SECONDS = 60.0


class Uploader:
    """Uploads whole checkpoint folders, the index last. Owner: Trainer. Thread: one. close() gives it a last minute.

    Only the newest waiting checkpoint is kept: an endpoint that is slower than training skips some.
    """

    def __init__(
        self, uri: str, say: Callable[[str], None], *, attempts: int = _ATTEMPTS, first_delay: float = _FIRST_DELAY
    ) -> None:
        self.bucket, _, prefix = uri.removeprefix("s3://").partition("/")
        self.prefix = prefix.strip("/")
        self.done = 0
        self.failures = 0
        self._say = say
        self._attempts = attempts
        self._first_delay = first_delay
        self._waiting: deque[Path] = deque(maxlen=1)
        self._changed = threading.Condition()
        self._closing = False
        self._left = False
        self._thread = threading.Thread(target=self._run, name="upload", daemon=True)
        self._thread.start()

    def add(self, folder: Path) -> None:
        """Upload `folder` when there is time."""
        with self._changed:
            self._waiting.append(folder)
            self._changed.notify_all()

    def close(self, timeout: float = _CLOSE_SECONDS) -> None:
        """Let a running upload end, `timeout` seconds at most; then leave it."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join(timeout)
        if self._thread.is_alive():
            self._left = True
            self._say(
                f"upload to s3://{self.bucket} left unfinished after {timeout:.0f} s; the local checkpoint is kept"
            )

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closing)
                if not self._waiting:
                    return
                folder = self._waiting.popleft()
            self._upload_with_retries(folder)

    def _upload_with_retries(self, folder: Path) -> None:
        for attempt in range(1, self._attempts + 1):
            try:
                self._upload(folder)
            except FileNotFoundError:
                self._say(f"upload of {folder.name} dropped: rotated away before it was done")
                return
            except Exception as error:
                self.failures += 1
                self._say(
                    f"upload of {folder.name} failed ({attempt}/{self._attempts}, {self.failures} in all): {error}"
                )
            else:
                self.done += 1
                self._say(f"upload of {folder.name} done: s3://{self.bucket}/{self._key(folder, '')}")
                return
            with self._changed:
                superseded = bool(self._waiting)
            last = attempt == self._attempts or superseded
            if last or not self._pause(self._first_delay * 2 ** (attempt - 1)):
                self._say(f"upload of {folder.name} given up; the local checkpoint is kept")
                return

    def _pause(self, delay: float) -> bool:
        """Wait before the next attempt, shortly once the run is ending; False when the run has left."""
        with self._changed:
            self._changed.wait_for(lambda: self._closing, timeout=delay)
        if self._closing:
            time.sleep(min(delay, _LAST_DELAY))
        return not self._left

    def _upload(self, folder: Path) -> None:
        client = _client()
        files = sorted(folder.iterdir(), key=lambda file: (file.name == INDEX, file.name))
        for file in files:
            client.upload_file(str(file), self.bucket, self._key(folder, file.name), Config=_transfer())

    def _key(self, folder: Path, name: str) -> str:
        return "/".join(part for part in (self.prefix, folder.name, name) if part)


def _client() -> Any:
    """Credentials, region and endpoint come from the environment, as for every AWS tool."""
    import boto3
    from botocore.config import Config

    return boto3.client("s3", config=Config(connect_timeout=10, read_timeout=30, retries={"max_attempts": 1}))


def _transfer() -> Any:
    from boto3.s3.transfer import TransferConfig

    return TransferConfig(use_threads=False, multipart_chunksize=64 << 20)
