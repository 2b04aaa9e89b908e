"""Box for a test: environment, release and runs below a temporary root."""

from __future__ import annotations

import json
import shutil
import signal
import sys
import time
import venv
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dflash_ops import release, resolved_config
from dflash_ops.core import processes, tree_manifest
from dflash_ops.core.paths import Layout
from dflash_ops.environment import build_record, interpreters
from dflash_ops.monitor import status
from dflash_ops.run import launch, metrics, run_processes, runs
from dflash_ops.run.launch import Request
from dflash_ops.run.trainer_command import Selection

STAND_IN = Path(__file__).parent / "stand_in" / "trainer.py"


class Box:
    """Root with an empty venv as environment `e1` and the stand-in trainer as release `r1`."""

    def __init__(self, root: Path) -> None:
        self.layout = Layout.of(root)
        self.selection = Selection(env_id="e1", release_id="r1", config="demo.toml")
        self.add_environment("e1")
        self.add_release("r1")

    def add_environment(self, env_id: str) -> None:
        folder = self.layout.env(env_id)
        venv.EnvBuilder(symlinks=True, with_pip=False).create(folder)
        base = interpreters.probe(str(Path(sys.executable).resolve()))
        assert base is not None
        record = {
            "env_id": env_id,
            "lock_sha256": "0" * 64,
            "packages": [{"name": "a", "version": "1"}],
            "files": tree_manifest.manifest(folder),
            "base": build_record.base_record(base),
            "self_test": {},
        }
        (folder / "env.json").write_text(json.dumps(record))

    def add_release(self, release_id: str) -> None:
        folder = self.layout.release(release_id)
        package = folder / "trainer" / "dflash_trainer"
        package.mkdir(parents=True)
        (package / "__init__.py").write_text("")
        shutil.copy(STAND_IN, package / "__main__.py")
        (folder / "trainer" / "configs").mkdir()
        (folder / "trainer" / "configs" / "demo.toml").write_text("")
        self.record_release(release_id)

    def record_release(self, release_id: str) -> None:
        """Write release.json for the files of a release."""
        folder = self.layout.release(release_id)
        hashes = release.file_hashes(folder / "trainer")
        record = {"release_id": release_id, "tree_hash": "t", "files": hashes}
        (folder / "release.json").write_text(json.dumps(record))

    def select(self, *overrides: str) -> Selection:
        return Selection(env_id="e1", release_id="r1", config="demo.toml", overrides=overrides)

    def launch(self, *overrides: str, **options: Any) -> runs.Run:
        """Start the stand-in trainer; each override is `section.key=value`."""
        selection = self.select(*overrides)
        resolved = resolved_config.resolve(self.layout, selection)
        request = Request(**{"selection": selection, "label": "demo", **options})
        return launch.start(self.layout, request, {"config": resolved["config"], "needs": resolved["needs"]})

    def state(self, run: runs.Run | None = None) -> str:
        return str(status.snapshot(self.layout, run_id=run.run_id if run else "")["state"])

    def end(self) -> None:
        """Kill the processes that this box started, and its tmux server."""
        for found in run_processes.running_processes(self.layout).values():
            processes.send_signal(found, signal.SIGKILL)
        host = launch.tmux_server(self.layout)
        host._call("kill-server")


def until(condition: Callable[[], object], *, seconds: float = 20.0, description: str = "") -> None:
    """Wait until a condition is true."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not true after {seconds} s: {description or condition}"
        time.sleep(0.05)


def start_training(box: Box, *overrides: str) -> runs.Run:
    """Start a run and wait for its second step."""
    run = box.launch(*overrides)
    until(lambda: len(metrics.read_metrics(run.metrics)) > 1)
    return run
