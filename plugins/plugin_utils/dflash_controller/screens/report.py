"""Report of a run as Markdown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dflash_ops.monitor.step_line import step_text

from dflash_controller.screens.status import config_text, speed_text
from dflash_controller.screens.text import number, problem_lines


def report_markdown(answer: Mapping[str, Any]) -> list[str]:
    """Return the lines of the report."""
    lines = [f"# Run {answer['run_id']}", "", f"State: **{answer['state']}** ({answer['detail']}).", ""]
    lines += [f"- {name}: {text}" for name, text in _origin_pairs(answer)]
    lines += ["", "## Metrics", "", "| step | loss | accept length | tok/s | lr |", "|---|---|---|---|---|"]
    lines += [
        f"| {row['step']} | {number(row['loss'], '.3f')} | {number(row['accept_len'], '.2f')} | {number(row['tok_s'])} "
        f"| {number(row['lr'], '.3g')} |"
        for row in answer["curve"]
    ]
    if answer["evaluations"]:
        lines += ["", "## Held-out data", "", "| step | loss | accept length |", "|---|---|---|"]
    lines += [
        f"| {row['step']} | {number(row['eval_loss'], '.3f')} | {number(row['eval_accept_len'], '.3f')} |"
        for row in answer["evaluations"]
    ]
    lines += ["", "## Checkpoints", ""]
    lines += [
        f"- step {item['step']}{': ' + item['damage'] if item['damage'] else ''}" for item in answer["checkpoints"]
    ] or ["none"]
    lines += ["", "## Problems", "", *(problem_lines(answer["problems"]) or ["none"])]
    return [*lines, "", "## Last lines of the log", "", "```", *answer["log_tail"], "```"]


def _origin_pairs(answer: Mapping[str, Any]) -> list[tuple[str, str]]:
    record, status = answer["record"], answer["status"]
    return [
        ("started", f"{answer['started_at']} UTC by {record.get('operator') or '?'} on {record.get('host')}"),
        (
            "built from",
            f"environment {record.get('env_id')}, release {record.get('release_id')}, cache {record.get('cache_id')} "
            f"({record.get('cache_state')})",
        ),
        ("configuration", config_text(record)),
        ("hardware", str(record.get("hardware")) + (f", driver {record['driver']}" if record.get("driver") else "")),
        ("step", step_text(status)),
        ("speed", speed_text(status)),
        ("resumed from", str(status.get("resumed_from") or "-")),
    ]
