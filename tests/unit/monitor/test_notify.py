"""The notification hook: each event once, as it begins, and nothing of a run depends on it."""

from __future__ import annotations

import http.server
import json
import shutil
import threading
from pathlib import Path

import pytest
from boxes import Box, until
from dflash_ops.core.errors import OpsError
from dflash_ops.monitor import notify
from dflash_ops.run import metrics, runs

pytestmark = pytest.mark.skipif(not shutil.which("tmux"), reason="tmux is not installed")


def hook(tmp_path: Path, **more: object) -> dict[str, object]:
    return notify.check({"command": f"cat >> {tmp_path}/told; echo >> {tmp_path}/told", "every_seconds": 0.2, **more})


def told(tmp_path: Path) -> list[str]:
    file = tmp_path / "told"
    return [json.loads(line)["event"] for line in file.read_text().splitlines()] if file.exists() else []


@pytest.mark.parametrize(("override", "event"), [("optimizer.max_steps=3", "finished"), ("test.how=kill9", "dead")])
def test_end_is_told_by_the_runs_own_watcher(box: Box, tmp_path: Path, override: str, event: str) -> None:
    box.launch(override, notify=hook(tmp_path))
    until(lambda: told(tmp_path))
    assert told(tmp_path) == [event]


def test_slow_is_told_once(box: Box, tmp_path: Path) -> None:
    run = box.launch(notify=hook(tmp_path), expected_tok_s=9000.0, **{"label": "x"})
    until(lambda: told(tmp_path))
    at = len(metrics.read_metrics(run.metrics))
    until(lambda: len(metrics.read_metrics(run.metrics)) > at + 20)
    assert told(tmp_path) == ["slow"]


def test_unwanted_events_are_not_told(box: Box, tmp_path: Path) -> None:
    run = box.launch("optimizer.max_steps=3", notify=hook(tmp_path, events=["dead"]))
    until(lambda: (run.folder / "exit.json").exists())
    assert notify.watch(box.layout, runs.load(box.layout, run.run_id), hook(tmp_path, events=["dead"])) == []


def test_webhook_gets_json_and_a_dead_one_is_only_said(box: Box) -> None:
    seen: list[dict[str, object]] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            seen.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Keep the test's output quiet."""

    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_address[1]}/hook"
    assert notify.send({"url": address}, "slow", {"run_id": "r", "tok_s": 5}) == ""
    assert (seen[0]["event"], seen[0]["run_id"]) == ("slow", "r")
    server.shutdown()
    server.server_close()
    assert "URLError" in notify.send({"url": address}, "slow", {})


@pytest.mark.parametrize("wrong", [{"events": ["dead"]}, {"command": "x", "events": ["tired"]}, {"cmd": "x"}])
def test_wrong_hook_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(OpsError, match="training_run_notify"):
        notify.check(wrong)
