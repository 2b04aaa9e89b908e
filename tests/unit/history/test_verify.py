"""Audit of a run: the files and the running process against the record."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path

import pytest
from boxes import Box, start_training, until
from dflash_controller import screens
from dflash_ops.history import verify
from dflash_ops.run import run_processes, runs

pytestmark = pytest.mark.skipif(not shutil.which("tmux"), reason="tmux is not installed")


def names(found: list[dict[str, str]]) -> list[str]:
    return [item["name"] for item in found]


def test_launched_process_matches_its_record(box: Box) -> None:
    run = start_training(box)
    assert verify._process(box.layout, run) == []


def test_other_interpreter_and_added_variables_are_named(box: Box) -> None:
    run = start_training(box)
    box.add_environment("e2")
    record = {**run.record, "env_id": "e2", "environment": [n for n in run.record["environment"] if n != "LANG"]}
    changed = runs.Run(run.run_id, run.folder, record)
    assert names(verify._process(box.layout, changed)) == ["wrong-python", "environment-variables"]


def test_foreign_torch_is_named(box: Box, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = start_training(box)
    main = run_processes.main_process(run)
    assert main is not None
    env = box.layout.env("e1")
    mapped = [f"{env}/lib/python3.11/site-packages/torch/lib/libtorch.so", f"{tmp_path}/user/torch/lib/libtorch.so"]
    monkeypatch.setattr(run_processes, "mapped_files", lambda _pid: mapped)
    found = verify._process(box.layout, run)
    assert names(found) == ["wrong-torch"]
    assert "user/torch/lib/libtorch.so" in found[0]["message"]


def test_torch_of_an_image_is_accepted_through_a_symlink(
    box: Box, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = start_training(box)
    real = tmp_path / "image-2026" / "site-packages" / "torch"
    real.mkdir(parents=True)
    (tmp_path / "image").symlink_to("image-2026")
    record = box.layout.env("e1") / "env.json"
    self_test = {"torch": {"file": str(tmp_path / "image/site-packages/torch/__init__.py")}}
    record.write_text(json.dumps({**json.loads(record.read_text()), "self_test": self_test}))
    monkeypatch.setattr(run_processes, "mapped_files", lambda _pid: [f"{real}/lib/libtorch.so"])
    assert verify._process(box.layout, run) == []


def test_audit_runs_every_check(box: Box) -> None:
    run = start_training(box)
    (run.folder / "run.json").write_text(json.dumps({**run.record, "tree_hash": "other", "lock_sha256": "other"}))
    answer = verify.audit(box.layout, "")
    assert not answer["ok"]
    assert list(answer["checks"]) == ["environment", "release", "inputs", "compile cache", "process", "log", "state"]
    assert answer["checks"]["process"] == "ok"
    assert answer["checks"]["release"] == "1 problem"
    assert "release-replaced" in names(answer["problems"])
    assert any(line.startswith("✘ run") for line in screens.verify_screen(answer))


def test_killed_run_still_matches_its_record(box: Box) -> None:
    run = start_training(box)
    main = run_processes.main_process(run)
    assert main is not None
    os.kill(main.pid, signal.SIGKILL)
    until(lambda: box.state() == "killed")
    checks = {"process": "none", "log": "ok", "state": "1 problem"}
    answer = verify.audit(box.layout, run.run_id)
    assert {name: answer["checks"][name] for name in checks} == checks
    shown = screens.verify_screen(answer)
    assert "  ○ process: none, the run is killed" in shown
    assert "  ✔ log: no known failure" in shown


def test_summary_separates_differences_from_problems_of_the_run() -> None:
    drift, killed = {"name": "environment-drift"}, {"name": "killed"}
    assert verify.summary([], []) == ""
    assert verify.summary([], [killed, killed]) == "everything is as recorded, but the run has problems: killed"
    assert verify.summary([drift], []) == "not as recorded: environment-drift"
    assert verify.summary([drift], [killed]) == "not as recorded: environment-drift; killed"
