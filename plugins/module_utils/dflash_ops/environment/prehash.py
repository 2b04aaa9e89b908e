"""What is done for an environment while uv still fills it: bytecode, and hashes of the packages that are finished.

Nothing here decides anything: a hash counts only when its file was not touched afterwards, bytecode only when the proof
runs on it.
"""

from __future__ import annotations

import csv
import os
import threading
from pathlib import Path
from types import TracebackType

from ..core import tree_manifest
from ..core.tree_manifest import FileHash
from . import bytecode

LOOK_SECONDS = 0.2
LOW_PRIORITY = 15


class Early:
    """Works beside uv. Owner: the build, which enters it before uv and leaves it after. Thread: one. Stops on leaving.

    Args:
        env: the environment that is being made.
        site: its site-packages.
        store: kept bytecode.
        link: kept bytecode may be linked, for nobody else reads it.
    """

    def __init__(self, env: Path, site: Path, store: Path, *, link: bool) -> None:
        self.link = link
        self.env = env
        self.site = site
        self.store = store
        self.known: dict[str, FileHash] = {}
        self._seen: set[str] = set()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, name="early", daemon=True)

    def __enter__(self) -> Early:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    def _work(self) -> None:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), LOW_PRIORITY)
        bytecode.restore(self.env, self.store, link=self.link)
        while not self._stop.wait(LOOK_SECONDS):
            for record in self.site.glob("*.dist-info/RECORD"):
                if str(record) not in self._seen:
                    self._hash_package(record)

    def _hash_package(self, record: Path) -> None:
        """Hash the files of a package when its RECORD has the lines that uv writes at the very end."""
        try:
            rows = list(csv.reader(record.read_text(encoding="utf-8").splitlines()))
            if not any(row and row[0].endswith(".dist-info/INSTALLER") for row in rows):
                return
            self._seen.add(str(record))
            prefix = self.site.relative_to(self.env).as_posix()
            for row in rows:
                name = os.path.normpath(f"{prefix}/{row[0]}")
                if self._stop.is_set():
                    return
                if not name.endswith(".pyc"):
                    self._hash_file(name)
        except (OSError, ValueError, csv.Error):
            return  # is not finished after all: hashed with the rest

    def _hash_file(self, name: str) -> None:
        path = f"{self.env}/{name}"
        if name.endswith(".py"):
            bytecode.fix_time(path)
        self.known[name] = tree_manifest.hash_file(path)
