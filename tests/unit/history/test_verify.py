"""The audit: what a running process really uses, against the record of its run."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path

import pytest
from boxes import Box, going, until
from dflash_controller import screens
from dflash_ops.history import verify
from dflash_ops.run import run_processes, runs

pytestmark = pytest.mark.skipif(not shutil.which("tmux"), reason="tmux is not installed")


def names(found: list[dict[str, str]]) -> list[str]:
    return [item["name"] for item in found]


def test_process_of_a_launch_is_what_its_record_says(box: Box) -> None:
    run = going(box)
    assert verify._process(box.layout, run) == []


def test_other_interpreter_and_added_variables_are_named(box: Box) -> None:
    run = going(box)
    box.add_environment("e2")
    record = {**run.record, "env_id": "e2", "environment": [n for n in run.record["environment"] if n != "LANG"]}
    changed = runs.Run(run.run_id, run.folder, record)
    assert names(verify._process(box.layout, changed)) == ["wrong-python", "environment-variables"]


def test_torch_from_elsewhere_is_named(box: Box, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = going(box)
    main = run_processes.main_process(run)
    assert main is not None
    env = box.layout.env("e1")
    mapped = [f"{env}/lib/python3.11/site-packages/torch/lib/libtorch.so", f"{tmp_path}/user/torch/lib/libtorch.so"]
    monkeypatch.setattr(run_processes, "mapped_files", lambda _pid: mapped)
    found = verify._process(box.layout, run)
    assert names(found) == ["wrong-torch"]
    assert "user/torch/lib/libtorch.so" in found[0]["message"]


def test_the_torch_of_an_image_counts_as_proved_also_behind_a_link(
    box: Box, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = going(box)
    real = tmp_path / "image-2026" / "site-packages" / "torch"
    real.mkdir(parents=True)
    (tmp_path / "image").symlink_to("image-2026")
    record = box.layout.env("e1") / "env.json"
    proof = {"torch": {"file": str(tmp_path / "image/site-packages/torch/__init__.py")}}
    record.write_text(json.dumps({**json.loads(record.read_text()), "self_test": proof}))
    monkeypatch.setattr(run_processes, "mapped_files", lambda _pid: [f"{real}/lib/libtorch.so"])
    assert verify._process(box.layout, run) == []


def test_audit_lists_every_part_and_never_stops_at_the_first(box: Box) -> None:
    run = going(box)
    (run.folder / "run.json").write_text(json.dumps({**run.record, "tree_hash": "other", "lock_sha256": "other"}))
    told = verify.audit(box.layout, "")
    assert not told["ok"]
    assert list(told["checks"]) == ["environment", "release", "inputs", "compile cache", "process", "log", "state"]
    assert told["checks"]["process"] == "ok"
    assert told["checks"]["release"] == "1 problem"
    assert "release-replaced" in names(told["problems"])
    assert any(line.startswith("✘ run") for line in screens.verify_screen(told))


def test_an_audit_of_a_killed_run_tells_its_end_and_not_that_it_differs_from_the_record(box: Box) -> None:
    run = going(box)
    main = run_processes.main_process(run)
    assert main is not None
    os.kill(main.pid, signal.SIGKILL)
    until(lambda: box.state() == "killed")
    checks = {"process": "none", "log": "ok", "state": "1 problem"}
    told = verify.audit(box.layout, run.run_id)
    assert {name: told["checks"][name] for name in checks} == checks
    shown = screens.verify_screen(told)
    assert "  ○ process: none, the run is killed" in shown
    assert "  ✔ log: no known failure" in shown


def test_the_summary_tells_a_difference_from_the_record_and_the_run_s_own_trouble_apart() -> None:
    drift, killed = {"name": "environment-drift"}, {"name": "killed"}
    assert verify.summary([], []) == ""
    assert verify.summary([], [killed, killed]) == "all is as recorded, and the run has trouble: killed"
    assert verify.summary([drift], []) == "not as recorded: environment-drift"
    assert verify.summary([drift], [killed]) == "not as recorded: environment-drift; killed"
