"""The resolved configuration: kept once for each release, and the file that the trainer starts from."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from boxes import Box, start_training, until
from dflash_ops import resolved_config
from dflash_ops.core import files, tree_manifest
from dflash_ops.core.errors import OpsError
from dflash_ops.history import prune
from dflash_ops.operations import ensure_run, readiness
from dflash_ops.run import run_processes, runs
from module_arguments import run_params

RELAUNCH = """
- hosts: trainers
  gather_facts: false
  vars:
    training_run_if_running: refuse
    training_run_repeat_finished: true
    training_run_stop_for_launch: true
  tasks:
    - ansible.builtin.set_fact:
        dflash_env: {env_id: e1}
        dflash_release: {release_id: r1}
        cacheable: true
    - ansible.builtin.import_role: {name: training_inputs}
    - ansible.builtin.import_role: {name: training_run, tasks_from: preflight}
    - ansible.builtin.import_role: {name: training_run, tasks_from: stop}
    - ansible.builtin.import_role: {name: compile_cache}
    - ansible.builtin.import_role: {name: training_run, tasks_from: launch}
"""
needs_tmux = pytest.mark.skipif(not shutil.which("tmux"), reason="tmux is not installed")


def log_trainer_commands(box: Box) -> Path:
    """Replace the environment's interpreter by a wrapper that logs each trainer command; return the log."""
    log = box.layout.root / "trainer-commands.log"
    python = box.layout.python("e1")
    real = python.resolve()
    python.unlink()
    python.write_text(
        f'#!/bin/sh\n[ "$2" = dflash_trainer ] && echo "$3" >> {shlex.quote(str(log))}\n'
        f'exec {shlex.quote(str(real))} "$@"\n'
    )
    python.chmod(0o755)
    record = box.layout.env("e1") / "env.json"
    folder = box.layout.env("e1")
    record.write_text(json.dumps({**json.loads(record.read_text()), "files": tree_manifest.manifest(folder)}))
    log.touch()
    return log


def commands(log: Path) -> list[str]:
    return log.read_text().split()


@needs_tmux
def test_one_relaunch_resolves_the_configuration_once(box: Box, repo: Path, tmp_path: Path) -> None:
    log = log_trainer_commands(box)
    first = start_training(box, "optimizer.lr=2")
    log.write_text("")
    play = tmp_path / "play.yml"
    play.write_text(RELAUNCH)
    options = {"dflash_root": str(box.layout.root), "dflash_workspace": "", "dflash_overrides": ["checkpoint.keep=2"]}
    done = subprocess.run(
        [str(Path(sys.executable).with_name("ansible-playbook")), str(play), "-e", json.dumps(options)],
        cwd=repo,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "ANSIBLE_NOCOLOR": "1"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    current = runs.current(box.layout)
    assert current is not None and current.run_id != first.run_id
    until(lambda: "train" in commands(log))
    assert commands(log).count("config") == 1, commands(log)


def test_check_mode_stores_nothing(box: Box) -> None:
    log = log_trainer_commands(box)
    readiness.check(box.layout, box.selection, store=False)
    assert not box.layout.configs.exists()
    readiness.check(box.layout, box.selection, store=True)
    readiness.check(box.layout, box.selection, store=False)
    assert commands(log) == ["config", "config"]


@needs_tmux
def test_trainer_starts_from_the_config_file_of_its_run(box: Box) -> None:
    run = start_training(box, "optimizer.lr=2")
    main = run_processes.main_process(run)
    assert main is not None
    argv = run_processes.command_line(main.pid)
    assert argv[argv.index("--config") + 1] == str(run.folder / "config.json")
    assert "--set" not in argv
    assert run.read("config.json") == run.record["config"]
    assert (run.record["config_file"], run.record["overrides"]) == ("demo.toml", ["optimizer.lr=2"])


def test_other_overrides_and_variables_are_resolved_separately(box: Box) -> None:
    log = log_trainer_commands(box)
    for selection in (box.select(), box.select("optimizer.lr=2"), box.select(), box.select("optimizer.lr=2")):
        resolved_config.resolve(box.layout, selection)
    other_home = ensure_run.selection_from(run_params(environment={"HOME": "/elsewhere"}))
    resolved_config.resolve(box.layout, other_home)
    assert commands(log) == ["config"] * 3


def test_drifted_release_neither_reads_nor_writes_the_stored_file(box: Box) -> None:
    log = log_trainer_commands(box)
    package = box.layout.release("r1") / "trainer/dflash_trainer"
    original = (package / "__main__.py").read_text()
    assert resolved_config.resolve(box.layout, box.selection)["config"]["optimizer"]["lr"] == 1e-3
    (package / "__main__.py").write_text(original.replace('"lr": 1e-3, "max_steps"', '"lr": 5.0, "max_steps"'))
    assert resolved_config.resolve(box.layout, box.selection)["config"]["optimizer"]["lr"] == 5.0
    (package / "__main__.py").write_text(original)
    assert resolved_config.resolve(box.layout, box.selection)["config"]["optimizer"]["lr"] == 1e-3
    assert commands(log) == ["config", "config"]


def test_moved_symlink_changed_target_and_damaged_file_are_resolved_again(box: Box, tmp_path: Path) -> None:
    log = log_trainer_commands(box)
    resolved_config.resolve(box.layout, box.selection)
    file = resolved_config.stored_file(box.layout, box.selection)
    stored = json.loads(file.read_text())
    link, shape = tmp_path / "newest", tmp_path / "model" / "config.json"
    link.symlink_to("/data/one")
    files.write_text(shape, "{}")
    status = shape.stat()
    needs = {**stored["needs"], "target_path": str(shape.parent)}
    full = {"needs": needs, "target_stamp": [status.st_size, status.st_mtime_ns], "paths": {str(link): "/data/one"}}
    files.write_json(file, {**stored, **full})
    assert resolved_config.resolve(box.layout, box.selection)["needs"] == needs
    assert commands(log) == ["config"]

    link.unlink()
    link.symlink_to("/data/two")
    resolved_config.resolve(box.layout, box.selection)
    assert commands(log) == ["config"] * 2
    link.unlink()
    link.symlink_to("/data/one")
    files.write_json(file, {**stored, **full})
    shape.write_text('{"vocab_size": 2}')
    resolved_config.resolve(box.layout, box.selection)
    assert commands(log) == ["config"] * 3
    file.write_text("{")
    resolved_config.resolve(box.layout, box.selection)
    assert commands(log) == ["config"] * 4


def test_answer_without_a_checkpoint_size_is_not_stored(box: Box) -> None:
    program = box.layout.release("r1") / "trainer/dflash_trainer/__main__.py"
    program.write_text(program.read_text().replace('"checkpoint_bytes": 1 << 20', '"checkpoint_bytes": None'))
    box.record_release("r1")
    log = log_trainer_commands(box)
    for _ in range(2):
        resolved_config.resolve(box.layout, box.selection)
    assert commands(log) == ["config", "config"]
    assert not box.layout.configs.exists()


def test_rejected_configuration_names_the_variable_and_stores_nothing(box: Box) -> None:
    with pytest.raises(OpsError, match=r"rejected dflash_config=demo\.toml: config error: nosuch\.key = 1"):
        resolved_config.resolve(box.layout, box.select("nosuch.key=1"))
    assert not box.layout.configs.exists()


def test_pruning_removes_the_stored_files_of_a_removed_release(box: Box) -> None:
    resolved_config.resolve(box.layout, box.selection)
    (kept,) = box.layout.configs.iterdir()
    gone = box.layout.configs / "0123456789abcdef.json"
    files.write_json(gone, {**json.loads(kept.read_text()), "release_id": "r0"})
    plan = prune.plan(box.layout, keep_runs=1)
    assert gone in dict(plan.remove) and kept not in dict(plan.remove)
    prune.apply(plan)
    assert list(box.layout.configs.iterdir()) == [kept]
