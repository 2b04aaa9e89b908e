"""Notification hook: each event is sent once, and a run does not depend on it."""

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
    command = f"cat >> {tmp_path}/events; echo >> {tmp_path}/events"
    return notify.check({"command": command, "every_seconds": 0.2, **more})


def sent_events(tmp_path: Path) -> list[str]:
    file = tmp_path / "events"
    return [json.loads(line)["event"] for line in file.read_text().splitlines()] if file.exists() else []


@pytest.mark.parametrize(("override", "event"), [("optimizer.max_steps=3", "finished"), ("test.how=kill9", "dead")])
def test_watcher_of_the_run_sends_its_end(box: Box, tmp_path: Path, override: str, event: str) -> None:
    box.launch(override, notify=hook(tmp_path))
    until(lambda: sent_events(tmp_path))
    assert sent_events(tmp_path) == [event]


def test_slow_is_sent_once(box: Box, tmp_path: Path) -> None:
    run = box.launch(notify=hook(tmp_path), expected_tok_s=9000.0, **{"label": "x"})
    until(lambda: sent_events(tmp_path))
    logged = len(metrics.read_metrics(run.metrics))
    until(lambda: len(metrics.read_metrics(run.metrics)) > logged + 20)
    assert sent_events(tmp_path) == ["slow"]


def test_events_that_are_not_configured_are_not_sent(box: Box, tmp_path: Path) -> None:
    run = box.launch("optimizer.max_steps=3", notify=hook(tmp_path, events=["dead"]))
    until(lambda: (run.folder / "exit.json").exists())
    assert notify.watch(box.layout, runs.load(box.layout, run.run_id), hook(tmp_path, events=["dead"])) == []


def test_webhook_receives_json_and_its_error_is_returned(box: Box) -> None:
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


@pytest.mark.parametrize("settings", [{"events": ["dead"]}, {"command": "x", "events": ["tired"]}, {"cmd": "x"}])
def test_invalid_hook_is_rejected(settings: dict[str, object]) -> None:
    with pytest.raises(OpsError, match="training_run_notify"):
        notify.check(settings)
