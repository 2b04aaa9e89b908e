"""Ensure that a training run is running: preflight checks, launch, or the reason for leaving things unchanged."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .. import drift
from ..core.errors import OpsError
from ..core.paths import Layout
from ..history import known_good
from ..monitor import notify, verdict
from ..run import launch, resume, run_processes, runs, secrets_file, trainer_command
from ..run.launch import Request
from ..run.trainer_command import Selection, check_environment
from . import downtime, preflight


def selection_from(params: Mapping[str, Any]) -> Selection:
    """Return the selection of environment, release, configuration and variables from module arguments."""
    return Selection(
        env_id=params["env_id"],
        release_id=params["release_id"],
        config=params["config"],
        overrides=tuple(params["overrides"]),
        extra=check_environment(params["environment"]),
    )


def request_from(params: Mapping[str, Any]) -> Request:
    """Return the launch request from module arguments.

    Raises:
        OpsError: an invalid value; the message names its variable.
    """
    label = params["label"] or Path(params["config"]).stem
    runs.normalise_label(label)
    return Request(
        selection=selection_from(params),
        label=label,
        session=params["session"],
        operator=params["operator"],
        resume=params["resume"],
        expected_tok_s=params["expected_tok_s"],
        tolerance=params["tolerance"],
        speed_steps=params["speed_steps"],
        script_link=params["script_link"],
        notify=notify.check(params["notify"]),
        origin=params["origin"],
    )


def ensure(layout: Layout, params: Mapping[str, Any], *, check_mode: bool) -> dict[str, Any]:
    """Launch a run unless one is running; return the module's result.

    Raises:
        OpsError: all reasons against the launch.
    """
    request = request_from(params)
    unchanged = _leave_unchanged(layout, request, params)
    if unchanged is not None:
        return unchanged
    if check_mode and not layout.is_built(request.selection.env_id, request.selection.release_id):
        message = f"would launch {request.label} once its environment and release exist"
        return _planned(_with_label_note(message, request))
    found = run_preflight(layout, request, params, replacing=check_mode and params["after_stop"], store=not check_mode)
    problems = list(found.problems)
    if found.cache is not None and not found.cache.warm and not (params["allow_cold"] or check_mode):
        problems.append(
            {
                "name": "cache-cold",
                "message": f"the compile cache is {found.cache.state}: {found.cache.reason}",
                "remedy": "relaunch.yml --tags warmup, or --tags launch, which prewarms first",
            }
        )
    if problems:
        raise refusal(problems)
    if check_mode:
        message = (
            f"would launch {request.label}: environment {request.selection.env_id}, release "
            f"{request.selection.release_id}, cache {found.cache.state if found.cache else 'unknown'}"
        )
        return _planned(_with_label_note(message, request))
    secrets_file.write(layout, {str(name): str(value) for name, value in params["secrets"].items()})
    target = str(params["origin"].get("rollback_to") or "")
    ready = dataclasses.replace(
        _with_cache(request, found),
        bad={*known_good.read(layout)["bad"], *params["mark_bad"]} - {target},
        good={target, *(entry["run_id"] for entry in known_good.good_entries(layout))},
    )
    started = launch.start(layout, ready, found.record)
    if params["mark_bad"] or target:
        known_good.mark(layout, bad=params["mark_bad"], good=target)
    main = run_processes.main_process(started)
    return {
        "changed": True,
        "launched": True,
        "run_id": started.run_id,
        "differs": [],
        "message": _with_label_note(
            f"launched {started.run_id} (pid {main.pid if main else 'gone'})" + _resume_note(layout, started), request
        ),
        "diff": {"before": "", "after": f"run {started.run_id}\n"},
    }


def check_before_stop(layout: Layout, params: Mapping[str, Any], *, check_mode: bool) -> dict[str, Any]:
    """Run the preflight checks of a launch before the running run is stopped for it, as if it were stopped already.

    Raises:
        OpsError: all reasons against the launch.
    """
    request = request_from(params)
    result = {"changed": False, "launched": False, "run_id": "", "differs": []}
    if check_mode and not layout.is_built(request.selection.env_id, request.selection.release_id):
        return {**result, "message": "environment and release do not exist yet"}
    launch.check_script_link(request.script_link)
    found = run_preflight(layout, request, params, replacing=True, store=not check_mode)
    if found.problems:
        raise refusal(found.problems, what="stopped or launched")
    note = downtime.message(layout, found.place, found.cache, wipe=params["wipe"])
    return {**result, "message": "\n".join(text for text in ("All preflight checks passed.", note) if text)}


def run_preflight(
    layout: Layout, request: Request, params: Mapping[str, Any], *, replacing: bool, store: bool
) -> preflight.Findings:
    """Run the preflight checks of a launch.

    Raises:
        OpsError: environment, release or configuration is missing.
    """
    selection = request.selection
    trainer_command.check_present(layout, selection)
    return preflight.check(
        layout,
        selection,
        session=request.session,
        secrets=params["secrets"],
        drift=drift.environment_drift(layout, selection.env_id),
        code=drift.release_drift(layout, selection.release_id),
        replacing=replacing,
        store=store,
    )


def _with_cache(request: Request, found: preflight.Findings) -> Request:
    return dataclasses.replace(request, cache_id=found.place.cache_id if found.place else "")


def _resume_note(layout: Layout, run: runs.Run) -> str:
    source = runs.resumed_from(run)
    if source:
        changed = " and ".join(resume.changed_inputs(layout, run))
        return f", resumes from {source}" + (f", whose {changed} had different content" if changed else "")
    finished = resume.finished_before(layout, run)
    return f", starts from step 0: {finished} already finished with this configuration" if finished else ""


def refusal(problems: list[dict[str, str]], *, what: str = "launched") -> OpsError:
    """Return one error with all reasons."""
    lines = [
        f"{item['name']}: {item['message']}" + (f" Remedy: {item['remedy']}" if item["remedy"] else "")
        for item in problems
    ]
    return OpsError("\n".join([f"Nothing was {what}.", *lines]), facts={"problems": problems})


def _with_label_note(message: str, request: Request) -> str:
    """Append a note when the label was changed."""
    note = runs.label_note(request.label)
    return f"{message}\n{note}" if note else message


def _planned(message: str) -> dict[str, Any]:
    return {
        "changed": True,
        "launched": False,
        "run_id": "",
        "differs": [],
        "message": message,
        "diff": {"before": "", "after": message + "\n"},
    }


def _leave_unchanged(layout: Layout, request: Request, params: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the result when nothing has to be launched; None when a run has to be launched."""
    found = run_processes.running_processes(layout)
    running = [run_id for run_id in found if run_processes.main_process(runs.load(layout, run_id))]
    if running and params["if_running"] == "keep":
        run = runs.load(layout, sorted(running)[-1])
        differs = differences(run, request)
        message = f"run {run.run_id} is running and was left unchanged" + (
            f"; it differs from the requested run: {'; '.join(differs)}; relaunch.yml replaces it" if differs else ""
        )
        return {"changed": False, "launched": False, "run_id": run.run_id, "differs": differs, "message": message}
    current = runs.current(layout)
    finished = current is not None and verdict.read(current).state == "finished"
    if current is not None and finished and not running and not params["repeat_finished"]:
        differs = differences(current, request)
        if not differs:
            return {
                "changed": False,
                "launched": False,
                "run_id": current.run_id,
                "differs": [],
                "message": f"run {current.run_id} already finished with this configuration; relaunch.yml trains again",
            }
    return None


def differences(run: runs.Run, request: Request) -> list[str]:
    """Return a sentence for each difference between a run and the requested run."""
    selection = request.selection
    pairs = [
        ("environment", run.record.get("env_id"), selection.env_id),
        ("release", run.record.get("release_id"), selection.release_id),
        ("configuration", run.record.get("config_file"), selection.config),
        ("overrides", list(run.record.get("overrides") or ()), list(selection.overrides)),
        ("variables", dict(run.record.get("extra_environment") or {}), dict(selection.extra)),
    ]
    return [
        f"{name} is {has}, requested {requested}"
        for name, has, requested in pairs
        if requested not in ("", None) and has != requested
    ]
