"""From what an operator asked to a running trainer, or to the sentence that says why there is nothing to start."""

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
from ..run.trainer_command import Selection, check_extra
from . import downtime, preflight


def selection_of(want: Mapping[str, Any]) -> Selection:
    """Read environment, release, configuration and extra variables from module arguments."""
    return Selection(
        env_id=want["env_id"],
        release_id=want["release_id"],
        config=want["config"],
        overrides=tuple(want["overrides"]),
        extra=check_extra(want["environment"]),
    )


def request_of(want: Mapping[str, Any]) -> Request:
    """Read the whole request from module arguments.

    Raises:
        OpsError: a word that cannot work, naming its variable.
    """
    label = want["label"] or Path(want["config"]).stem
    runs.normalise_label(label)
    return Request(
        selection=selection_of(want),
        label=label,
        session=want["session"],
        operator=want["operator"],
        resume=want["resume"],
        expected_tok_s=want["expected_tok_s"],
        tolerance=want["tolerance"],
        speed_steps=want["speed_steps"],
        keep_link=want["script_link"],
        notify=notify.check(want["notify"]),
        origin=want["origin"],
    )


def ensure(layout: Layout, want: Mapping[str, Any], *, check_mode: bool) -> dict[str, Any]:
    """Make a run live, or leave the one that does; return the module's result.

    Raises:
        OpsError: the reasons not to launch, all of them.
    """
    request = request_of(want)
    kept = _kept(layout, request, want)
    if kept is not None:
        return kept
    if check_mode and not layout.is_built(request.selection.env_id, request.selection.release_id):
        return _would(_noted(f"would launch {request.label} once its environment and release are there", request))
    found = look(layout, request, want, replacing=check_mode and want["after_stop"])
    problems = list(found.problems)
    if found.cache is not None and not found.cache.warm and not (want["allow_cold"] or check_mode):
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
        said = (
            f"would launch {request.label}: environment {request.selection.env_id}, release "
            f"{request.selection.release_id}, cache {found.cache.state if found.cache else 'unknown'}"
        )
        return _would(_noted(said, request))
    secrets_file.place(layout, {str(name): str(value) for name, value in want["secrets"].items()})
    chosen = str(want["origin"].get("rollback_to") or "")
    ready = dataclasses.replace(
        _with_cache(request, found),
        bad={*known_good.read(layout)["bad"], *want["mark_bad"]} - {chosen},
        proved={chosen, *(entry["run_id"] for entry in known_good.good_entries(layout))},
    )
    started = launch.start(layout, ready, found.record)
    if want["mark_bad"] or chosen:
        known_good.mark(layout, bad=want["mark_bad"], good=chosen)
    main = run_processes.main_process(started)
    return {
        "changed": True,
        "launched": True,
        "run_id": started.run_id,
        "differs": [],
        "message": _noted(
            f"launched {started.run_id} (pid {main.pid if main else 'gone'})" + _goes_on(layout, started), request
        ),
        "diff": {"before": "", "after": f"run {started.run_id}\n"},
    }


def before_stop(layout: Layout, want: Mapping[str, Any], *, check_mode: bool) -> dict[str, Any]:
    """Take every look of a launch as if the run that lives were stopped already, so that it is not stopped in vain.

    Raises:
        OpsError: the reasons not to launch, all of them.
    """
    request = request_of(want)
    told = {"changed": False, "launched": False, "run_id": "", "differs": []}
    if check_mode and not layout.is_built(request.selection.env_id, request.selection.release_id):
        return {**told, "message": "environment and release are not there yet"}
    launch.refuse_link(request.keep_link)
    found = look(layout, request, want, replacing=True)
    if found.problems:
        raise refusal(found.problems, what="stopped or launched")
    waits = downtime.told(layout, found.place, found.cache, wipe=want["wipe"])
    return {**told, "message": "\n".join(text for text in ("every look is fine: it can be launched", waits) if text)}


def look(
    layout: Layout, request: Request, want: Mapping[str, Any], *, replacing: bool = False
) -> preflight.Findings:
    """Take every look that a launch needs."""
    chosen = request.selection
    trainer_command.check_present(layout, chosen)
    return preflight.look(
        layout,
        chosen,
        session=request.session,
        secrets=want["secrets"],
        drift=drift.of_environment(layout, chosen.env_id),
        code=drift.of_release(layout, chosen.release_id),
        replacing=replacing,
    )


def _with_cache(request: Request, found: preflight.Findings) -> Request:
    return dataclasses.replace(request, cache_id=found.place.cache_id if found.place else "")


def _goes_on(layout: Layout, run: runs.Run) -> str:
    source = runs.goes_on_from(run)
    if source:
        other = " and ".join(resume.other_inputs(layout, run))
        return f", goes on from {source}" + (f", whose {other} had other content" if other else "")
    ended = resume.finished_before(layout, run)
    return f", from step 0: {ended} of this configuration came to its end" if ended else ""


def refusal(problems: list[dict[str, str]], *, what: str = "launched") -> OpsError:
    """Return one error that holds every reason."""
    lines = [
        f"{item['name']}: {item['message']}" + (f" Remedy: {item['remedy']}" if item["remedy"] else "")
        for item in problems
    ]
    return OpsError("\n".join([f"Nothing was {what}.", *lines]), facts={"problems": problems})


def _noted(said: str, request: Request) -> str:
    """Add what became of the label."""
    note = runs.label_note(request.label)
    return f"{said}\n{note}" if note else said


def _would(said: str) -> dict[str, Any]:
    return {
        "changed": True,
        "launched": False,
        "run_id": "",
        "differs": [],
        "message": said,
        "diff": {"before": "", "after": said + "\n"},
    }


def _kept(layout: Layout, request: Request, want: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the result that leaves things as they are; None when something is to be started."""
    found = run_processes.all_living(layout)
    alive = [run_id for run_id in found if run_processes.main_process(runs.load(layout, run_id))]
    if alive and want["if_running"] == "keep":
        run = runs.load(layout, sorted(alive)[-1])
        differs = differences(run, request)
        said = f"run {run.run_id} lives and was left alone" + (
            f"; it is not what was asked: {'; '.join(differs)}; relaunch.yml replaces it" if differs else ""
        )
        return {"changed": False, "launched": False, "run_id": run.run_id, "differs": differs, "message": said}
    current = runs.current(layout)
    finished = current is not None and verdict.read(current).state == "finished"
    if current is not None and finished and not alive and not want["repeat_finished"]:
        differs = differences(current, request)
        if not differs:
            return {
                "changed": False,
                "launched": False,
                "run_id": current.run_id,
                "differs": [],
                "message": f"run {current.run_id} of this very state came to its end; relaunch.yml starts it again",
            }
    return None


def differences(run: runs.Run, request: Request) -> list[str]:
    """Say what of a run is not what the operator asks for now."""
    chosen = request.selection
    pairs = [
        ("environment", run.record.get("env_id"), chosen.env_id),
        ("release", run.record.get("release_id"), chosen.release_id),
        ("configuration", run.record.get("config_file"), chosen.config),
        ("overrides", list(run.record.get("overrides") or ()), list(chosen.overrides)),
        ("variables", dict(run.record.get("extra_environment") or {}), dict(chosen.extra)),
    ]
    return [
        f"{name} is {has}, asked for {wanted}"
        for name, has, wanted in pairs
        if wanted not in ("", None) and has != wanted
    ]
