"""Uploads to a local HTTP server that works, refuses, hangs or resets connections."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from dflash_trainer.checkpoint import CheckpointStore
from dflash_trainer.checkpoint.upload import Uploader
from dflash_trainer.errors import ExitCode
from tiny_runs import TinyRun


class Endpoint(ThreadingHTTPServer):
    """S3-like endpoint with a configurable answer; `stored` has the uploaded keys."""

    daemon_threads = True
    answer = "works"

    def __init__(self) -> None:
        self.stored: list[str] = []
        self.requests = 0
        self.release = threading.Event()
        super().__init__(("127.0.0.1", 0), Handler)


class Handler(BaseHTTPRequestHandler):
    """Handler of PUT requests."""

    server: Endpoint

    def do_PUT(self) -> None:
        self.server.requests += 1
        if self.server.answer == "hangs":
            self.server.release.wait(60)
            return
        if self.server.answer == "resets":
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()
            return
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.server.answer == "works":
            self.server.stored.append(self.path.split("?")[0])
        self.send_response(200 if self.server.answer == "works" else 403)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *args: object) -> None:
        return


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch) -> Iterator[Endpoint]:
    """Run the server with an environment that points boto3 to it."""
    server = Endpoint()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    for name, value in {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{server.server_port}",
        "AWS_ACCESS_KEY_ID": "x",
        "AWS_SECRET_ACCESS_KEY": "y",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }.items():
        monkeypatch.setenv(name, value)
    yield server
    server.release.set()
    server.shutdown()
    server.server_close()


def folder(tmp_path: Path) -> Path:
    """Create a folder like a checkpoint."""
    checkpoint = tmp_path / "step-00000001"
    checkpoint.mkdir()
    for name in ("index.json", "model.safetensors", "trainer.json"):
        (checkpoint / name).write_text(name)
    return checkpoint


def wait_until(check: object, timeout: float = 300.0) -> None:
    deadline = time.monotonic() + timeout
    while not check():  # type: ignore[operator]
        assert time.monotonic() < deadline, "did not happen"
        time.sleep(0.02)


def test_all_files_are_uploaded_and_the_index_last(endpoint: Endpoint, tmp_path: Path) -> None:
    uploader = Uploader("s3://bucket/some/prefix", lambda line: None)
    uploader.add(folder(tmp_path))
    uploader.close()
    base = "/bucket/some/prefix/step-00000001/"
    assert endpoint.stored == [base + "model.safetensors", base + "trainer.json", base + "index.json"]
    assert (uploader.done, uploader.failures) == (1, 0)


@pytest.mark.parametrize("answer", ["403", "resets"])
def test_refused_upload_is_retried_and_counted_until_it_succeeds(
    endpoint: Endpoint, tmp_path: Path, answer: str
) -> None:
    endpoint.answer = answer
    log: list[str] = []
    uploader = Uploader("s3://bucket", log.append, first_delay=0.05)
    uploader.add(folder(tmp_path))
    wait_until(lambda: uploader.failures >= 2)
    endpoint.answer = "works"
    wait_until(lambda: uploader.done == 1)
    uploader.close()
    assert "failed (1/5, 1 in total)" in log[0]
    assert endpoint.stored[-1] == "/bucket/step-00000001/index.json"


def test_upload_is_abandoned_after_the_last_attempt(endpoint: Endpoint, tmp_path: Path) -> None:
    endpoint.answer = "403"
    log: list[str] = []
    uploader = Uploader("s3://bucket", log.append, attempts=2, first_delay=0.01)
    uploader.add(folder(tmp_path))
    wait_until(lambda: any("abandoned" in line for line in log))
    uploader.close()
    assert uploader.failures == 2


def test_hanging_endpoint_blocks_neither_add_nor_close(endpoint: Endpoint, tmp_path: Path) -> None:
    endpoint.answer = "hangs"
    log: list[str] = []
    uploader = Uploader("s3://bucket", log.append)
    checkpoint = folder(tmp_path)
    for _ in range(50):
        uploader.add(checkpoint)
    wait_until(lambda: endpoint.requests > 0)
    uploader.close(timeout=0.5)
    assert (uploader.done, uploader.failures) == (0, 0), "the endpoint answered"
    assert any("not finished after" in line for line in log)


@pytest.mark.parametrize("answer", ["403", "resets"])
def test_training_continues_while_uploads_fail(endpoint: Endpoint, tiny: TinyRun, answer: str) -> None:
    endpoint.answer = answer
    assert tiny.train("run", "checkpoint.s3_uri=s3://bucket/runs", "optimizer.max_steps=30") == ExitCode.FINISHED
    assert len(tiny.rows("run")) == 30
    assert endpoint.requests > 0
    found = CheckpointStore(tiny.folder / "run/checkpoints").newest(lambda line: None)
    assert found is not None and found.step == 30


def test_upload_failures_are_in_metrics(endpoint: Endpoint, tiny: TinyRun, monkeypatch: pytest.MonkeyPatch) -> None:
    """The row of the step after a failed upload counts it."""
    endpoint.answer = "403"
    from dflash_trainer.training import trainer

    real = trainer.Trainer._record

    def record(self: trainer.Trainer, row: dict[str, object]) -> None:
        uploader = self.records.uploader
        if self.position.step == 12 and uploader is not None:
            wait_until(lambda: uploader.failures > 0)
        real(self, row)

    monkeypatch.setattr(trainer.Trainer, "_record", record)
    tiny.train("run", "checkpoint.s3_uri=s3://bucket", "optimizer.max_steps=15")
    assert tiny.rows("run")[0]["uploads_failed"] == 0
    assert tiny.rows("run")[-1]["uploads_failed"] >= 1
