"""Upload complete checkpoints to S3 in the background, with retries; training never waits."""

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
    """Uploads checkpoint folders, the index last. Owner: Trainer. Thread: one. close() waits up to a minute.

    Only the newest waiting checkpoint is kept, so a slow endpoint skips some.
    """

    def __init__(
        self, uri: str, log: Callable[[str], None], *, attempts: int = _ATTEMPTS, first_delay: float = _FIRST_DELAY
    ) -> None:
        self.bucket, _, prefix = uri.removeprefix("s3://").partition("/")
        self.prefix = prefix.strip("/")
        self.done = 0
        self.failures = 0
        self._log = log
        self._attempts = attempts
        self._first_delay = first_delay
        self._waiting: deque[Path] = deque(maxlen=1)
        self._changed = threading.Condition()
        self._closing = False
        self._abandoned = False
        self._thread = threading.Thread(target=self._run, name="upload", daemon=True)
        self._thread.start()

    def add(self, folder: Path) -> None:
        """Queue `folder` for upload."""
        with self._changed:
            self._waiting.append(folder)
            self._changed.notify_all()

    def close(self, timeout: float = _CLOSE_SECONDS) -> None:
        """Wait at most `timeout` seconds for a running upload."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join(timeout)
        if self._thread.is_alive():
            self._abandoned = True
            self._log(
                f"upload to s3://{self.bucket} not finished after {timeout:.0f} s; the local checkpoint is kept"
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
                self._log(f"upload of {folder.name} dropped: the checkpoint was rotated out before the upload finished")
                return
            except Exception as error:
                self.failures += 1
                self._log(
                    f"upload of {folder.name} failed ({attempt}/{self._attempts}, {self.failures} in total): {error}"
                )
            else:
                self.done += 1
                self._log(f"upload of {folder.name} done: s3://{self.bucket}/{self._key(folder, '')}")
                return
            with self._changed:
                superseded = bool(self._waiting)
            last = attempt == self._attempts or superseded
            if last or not self._pause(self._first_delay * 2 ** (attempt - 1)):
                self._log(f"upload of {folder.name} abandoned; the local checkpoint is kept")
                return

    def _pause(self, delay: float) -> bool:
        """Wait before the next attempt, briefly once the run is ending; return False when close() gave up."""
        with self._changed:
            self._changed.wait_for(lambda: self._closing, timeout=delay)
        if self._closing:
            time.sleep(min(delay, _LAST_DELAY))
        return not self._abandoned

    def _upload(self, folder: Path) -> None:
        client = _client()
        files = sorted(folder.iterdir(), key=lambda file: (file.name == INDEX, file.name))
        for file in files:
            client.upload_file(str(file), self.bucket, self._key(folder, file.name), Config=_transfer())

    def _key(self, folder: Path, name: str) -> str:
        return "/".join(part for part in (self.prefix, folder.name, name) if part)


def _client() -> Any:
    """Return an S3 client; credentials, region and endpoint come from the environment."""
    import boto3
    from botocore.config import Config

    return boto3.client("s3", config=Config(connect_timeout=10, read_timeout=30, retries={"max_attempts": 1}))


def _transfer() -> Any:
    from boto3.s3.transfer import TransferConfig

    return TransferConfig(use_threads=False, multipart_chunksize=64 << 20)
