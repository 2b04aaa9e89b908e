"""Audit of a run: its record against every file it uses and against its running process."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from .. import drift, inputs, resolved_config
from ..compile_cache import cache
from ..core import files, processes, truncate
from ..core.errors import OpsError
from ..core.paths import Layout
from ..monitor import failures, status, verdict
from ..monitor.failures import problem
from ..run import run_processes, runs
from ..run.trainer_command import Selection

LOG_BYTES = 1 << 20
NO_PROCESS = "none"
Check = Callable[[], list[dict[str, str]]]


def audit(layout: Layout, run_id: str) -> dict[str, Any]:
    """Return `{"ok", "run_id", "state", "checks": {name: "ok", "none" or a count}, "problems", "summary", ...}`.

    Raises:
        OpsError: the run does not exist.
    """
    run = runs.require(layout, run_id)
    state, main = verdict.read(run).state, run_processes.main_process(run)
    selection = Selection.from_record(run.record)
    recorded: dict[str, Check] = {
        "environment": lambda: _environment(layout, run, selection),
        "release": lambda: _release(layout, run, selection),
        "inputs": lambda: _inputs(layout, run, selection),
        "compile cache": lambda: _cache(layout, run),
        "process": lambda: _process(layout, run),
    }
    health: dict[str, Check] = {
        "log": lambda: _log(run),
        "state": lambda: list(status.snapshot(layout, run_id=run.run_id)["problems"]),
    }
    found = {name: _run_check(name, check) for name, check in {**recorded, **health}.items()}
    checks = {name: _count(listed) for name, listed in found.items()}
    if main is None:
        checks["process"] = NO_PROCESS
    python, torch = status.files_in_use(main) if main else ("", "")
    differs, trouble = ([item for name in part for item in found[name]] for part in (recorded, health))
    return {
        "ok": not (differs or trouble),
        "run_id": run.run_id,
        "state": state,
        "checks": checks,
        "summary": summary(differs, trouble),
        "pid": main.pid if main else None,
        "python": python,
        "torch": torch,
        "problems": _once([*differs, *trouble]),
    }


def _run_check(name: str, check: Check) -> list[dict[str, str]]:
    try:
        return check()
    except OpsError as error:
        return [problem(name.replace(" ", "-"), error.message, error.remedy)]


def _count(found: Sequence[object]) -> str:
    return "ok" if not found else f"{len(found)} problem{'s' * (len(found) > 1)}"


def _once(found: Iterable[dict[str, str]]) -> list[dict[str, str]]:
    """Return each problem once; log and state may report the same failure."""
    listed: list[dict[str, str]] = []
    for item in found:
        listed += [item] if item not in listed else []
    return listed


def summary(differs: Sequence[Mapping[str, str]], trouble: Sequence[Mapping[str, str]]) -> str:
    """Return one sentence about differences from the record and trouble of the run; empty when there is neither."""
    names = [", ".join(dict.fromkeys(str(item["name"]) for item in part)) for part in (differs, trouble)]
    if trouble and not differs:
        return f"everything is as recorded, but the run has problems: {names[1]}"
    return "; ".join(text for text in (f"not as recorded: {names[0]}" * bool(differs), names[1]) if text)


def _environment(layout: Layout, run: runs.Run, selection: Selection) -> list[dict[str, str]]:
    found = [
        problem("environment-drift", text, drift.HEAL_ENVIRONMENT)
        for text in drift.environment_drift(layout, selection.env_id, full=True)
    ]
    env = files.read_json(layout.env(selection.env_id) / "env.json") or {}
    if env.get("lock_sha256") != run.record.get("lock_sha256"):
        found.append(
            problem(
                "environment-replaced",
                f"lockfile {run.record.get('lock_sha256')} in the record, {env.get('lock_sha256')} on the box",
                "relaunch.yml starts a run with the environment on the box",
            )
        )
    return found


def _release(layout: Layout, run: runs.Run, selection: Selection) -> list[dict[str, str]]:
    found = [
        problem("release-changed", text, drift.HEAL_RELEASE)
        for text in drift.release_drift(layout, selection.release_id)
    ]
    release = files.read_json(layout.release(selection.release_id) / "release.json") or {}
    if release.get("tree_hash") != run.record.get("tree_hash"):
        found.append(
            problem(
                "release-replaced",
                f"tree {run.record.get('tree_hash')} in the record, {release.get('tree_hash')} on the box",
                "relaunch.yml starts a run with the release on the box",
            )
        )
    return found


def _inputs(layout: Layout, run: runs.Run, selection: Selection) -> list[dict[str, str]]:
    resolved = resolved_config.resolve(layout, selection, store=False)
    remedy = "restore the recorded files, or relaunch with -e training_inputs_accept=true"
    found = [problem("inputs-changed", text, remedy) for text in inputs.find_problems(layout, resolved, full=True)]
    now = inputs.fingerprints(layout, resolved)
    for name, recorded in dict(run.record.get("inputs") or {}).items():
        found_now = dict(now.get(name) or {}).get("fingerprint")
        if found_now != recorded.get("fingerprint"):
            text = f"{name} had fingerprint {recorded.get('fingerprint')} at the launch and has {found_now} now"
            found.append(problem("inputs-changed", text, remedy))
    return found


def _cache(layout: Layout, run: runs.Run) -> list[dict[str, str]]:
    if not run.record.get("cache_id"):
        return []
    now = cache.inspect(layout, cache.recorded_key(run.record))
    return [] if now.warm else [problem("cache-" + now.state, now.reason, "relaunch.yml --tags warmup")]


def _process(layout: Layout, run: runs.Run) -> list[dict[str, str]]:
    """Compare the interpreter, torch libraries and environment variables of the running process with the record."""
    main = run_processes.main_process(run)
    if main is None:
        return []
    env = layout.env(str(run.record["env_id"]))
    found = []
    argv = run_processes.command_line(main.pid)
    if argv[:1] != [str(env / "bin" / "python")]:
        found.append(
            problem("wrong-python", f"process {main.pid} runs {argv[:1]}, not {env / 'bin' / 'python'}", "relaunch.yml")
        )
    real, expected = run_processes.executable(main.pid), os.path.realpath(env / "bin" / "python")
    if real and real != expected:
        found.append(
            problem(
                "wrong-python",
                f"process {main.pid} executes {real}, not {expected}",
                "the base interpreter was replaced after the launch; relaunch.yml",
            )
        )
    found += _foreign_torch(main.pid, env)
    return found + _environment_of(main.pid, run.record)


def _foreign_torch(pid: int, env: Path) -> list[dict[str, str]]:
    """Return the mapped torch libraries that belong neither to the environment nor to the torch of its self-test."""
    libraries = run_processes.torch_libraries(pid)
    record = files.read_json(env / "env.json") or {}
    tested = str(dict(dict(record.get("self_test") or {}).get("torch") or {}).get("file") or "")
    # The kernel reports resolved paths; the Python of an image may be reached through a symlink.
    allowed = [os.path.realpath(top) for top in (env, *([Path(tested).parents[1]] if tested.count("/") > 2 else []))]
    foreign = [path for path in libraries if not any(path.startswith(f"{top}/") for top in allowed)]
    if not foreign:
        return []
    text = f"process {pid} uses {truncate.join_items(foreign, 5, separator=', ')}, outside {env}"
    return [problem("wrong-torch", text, f"check for a .pth file; {drift.HEAL_ENVIRONMENT}")]


def _environment_of(pid: int, record: Mapping[str, Any]) -> list[dict[str, str]]:
    """Compare the names of the process's environment variables with the record; values may be secret."""
    seen = set(processes.environment_of(pid))
    if not seen:
        return []
    listed = set(record.get("environment") or ())
    return [
        problem("environment-variables", f"process {pid} has {name}, which the launch did not set", "relaunch.yml")
        for name in sorted(seen - listed - {"LC_CTYPE"})
    ]


def _log(run: runs.Run) -> list[dict[str, str]]:
    return [item.as_problem() for item in failures.match(files.read_tail(run.log, LOG_BYTES).splitlines())]
