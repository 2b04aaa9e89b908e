"""What a person reads: the status screen, the panel after a launch, the list of runs, a comparison, a report."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dflash_ops.core import disk, durations, truncate
from dflash_ops.history import verify
from dflash_ops.monitor import logs

MARKS = {"running": "●", "finished": "✔", "stopped": "■", "not running": "○", "unknown": "?"}
BAD = "✘"


def number(value: Any, form: str = ".0f") -> str:
    """Return a number in `form`; text as it is; a dash for nothing."""
    if value is None:
        return "-"
    return f"{value:{form}}" if isinstance(value, (int, float)) else str(value)


def rows(pairs: Iterable[tuple[str, str]]) -> list[str]:
    """Return aligned `name  value` lines, without those that have no value."""
    kept = [(name, text) for name, text in pairs if text]
    width = max((len(name) for name, _ in kept), default=0)
    return [f"  {name:<{width}}  {text}" for name, text in kept]


def problem_lines(problems: Sequence[Mapping[str, str]]) -> list[str]:
    """Return each problem with its remedy."""
    lines = []
    for item in problems:
        first, *rest = str(item["message"]).splitlines() or [""]
        lines.append(f"  {BAD} {item['name']}: {first}")
        lines += [f"      {text}" for text in rest]
        if item.get("remedy"):
            lines.append(f"      remedy: {item['remedy']}")
    return lines


def status_screen(answer: Mapping[str, Any]) -> list[str]:
    """Return the status of one box on one screen."""
    state = str(answer["state"])
    head = f"{MARKS.get(state, BAD)} {state}: {answer.get('detail') or ''}".rstrip(": ")
    if not answer.get("run_id"):
        return [
            head,
            *rows([("gpus", gpu_text(answer.get("gpus") or ())), *_beside_pairs(answer)]),
            *problem_lines(answer.get("problems") or ()),
        ]
    return [head, *rows(_status_pairs(answer)), *problem_lines(answer.get("problems") or ()), *command_lines(answer)]


def _status_pairs(answer: Mapping[str, Any]) -> list[tuple[str, str]]:
    live = answer["state"] in ("running", "stalled")
    return [
        ("run", f"{answer['run_id']} for {durations.format_duration(answer.get('seconds'))}" + _resumed(answer)),
        ("config", config_text(answer)),
        ("process", f"pid {answer['pid']}, {terminal_text(answer)}" if answer.get("pid") else ""),
        ("python", str(answer.get("python") or "")),
        ("torch", str(answer.get("torch") or "")),
        ("phase", str(answer.get("phase_text") or "") if live and answer.get("phase") != "training" else ""),
        ("step", step_text(answer)),
        ("left", left_text(answer)),
        ("speed", speed_text(answer)),
        (
            "workers",
            f"queue {number(answer.get('queue_depth'))}, recompiles {number(answer.get('recompiles'))}, "
            f"skipped batches {number(answer.get('skipped_batches'))}, allocator {allocator_text(answer)}"
            if answer.get("step")
            else "",
        ),
        ("checkpoint", checkpoint_text(answer.get("checkpoint"))),
        ("gpus", gpu_text(answer.get("gpus") or ())),
        ("disk", f"{disk.format_bytes(answer['disk']['free_bytes'])} free on {answer['disk']['mount']}"),
        (
            "made of",
            f"environment {answer['env_id']}, release {answer['release_id']}, cache {answer['cache_id'] or '-'}",
        ),
        ("last sign", f"{durations.format_duration(answer.get('seconds_since_sign'))} ago" if live else ""),
        *_beside_pairs(answer),
    ]


def _beside_pairs(answer: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return what is at work on the box beside the run."""
    held = answer.get("held_by")
    found = [("job", job_text(job)) for job in answer.get("jobs") or ()]
    return [*found, ("held by", holder_text(held) if held else "")]


def job_text(job: Mapping[str, Any]) -> str:
    """Return `prewarm-9c1f (warm compile cache 9c1f) for 42 s: cold: warmup 3/8 ...`."""
    newest = f": {job['line']}" if job["line"] else ""
    return f"{job['job_id']} ({job['title'] or 'a job'}) for {durations.format_duration(job['seconds'])}{newest}"


def holder_text(held: Mapping[str, Any]) -> str:
    """Return `ann on laptop (pid 4711) since 2026-01-31 12:00:00 UTC (2 m 05 s) for: relaunch`."""
    since = f"{durations.format_timestamp(held['since'])} UTC ({durations.format_duration(held['seconds'])})"
    who = f"{held['operator']} on {held['host']} (pid {held['pid']})"
    return f"{who} since {since} for: {held['operation'] or 'a playbook'}"


def _resumed(answer: Mapping[str, Any]) -> str:
    return f", goes on from {answer['goes_on_from']}" if answer.get("goes_on_from") else ""


def terminal_text(answer: Mapping[str, Any]) -> str:
    """Return where the run can be seen; it needs no terminal, so a missing one is no problem."""
    if "attach" in dict(answer.get("commands") or {}):
        return f"session {answer.get('session')}"
    return f"its session {answer.get('session')} is gone; the run goes on without"


def step_text(answer: Mapping[str, Any]) -> str:
    """Return `128/400, epoch 3, loss 3.912, accept length 1.82, lr 0.001`."""
    if answer.get("step") is None:
        return ""
    total = f"/{answer['total_steps']}" if answer.get("total_steps") else ""
    epoch = f", epoch {number(answer.get('epoch'), 'g')}" if answer.get("epoch") is not None else ""
    return (
        f"{answer['step']}{total}{epoch}, loss {number(answer.get('loss'), '.3f')}, "
        f"accept length {number(answer.get('accept_len'), '.2f')}, lr {number(answer.get('lr'), '.3g')}"
    )


def config_text(answer: Mapping[str, Any]) -> str:
    """Return `demo.toml runtime.compile=true`."""
    return " ".join([str(answer.get("config_file") or ""), *(answer.get("overrides") or ())]).strip()


def left_text(answer: Mapping[str, Any]) -> str:
    """Return `2 h 07 m, until about 14:05 UTC`."""
    left = answer.get("seconds_left")
    if left is None:
        return ""
    return f"{durations.format_duration(left)}, until about {durations.format_timestamp(time.time() + left)[:16]} UTC"


def speed_text(answer: Mapping[str, Any]) -> str:
    """Return `812 tok/s (best 840, expected 800, best known 850 of 20260131T120000Z-demo)`."""
    if answer.get("tok_s") is None:
        return ""
    expected = f", expected {number(answer['expected_tok_s'])}" if answer.get("expected_tok_s") else ""
    known = answer.get("best_known")
    other = f", best known {number(known['tok_s'])} of {known['run_id']}" if known else ""
    return f"{number(answer['tok_s'])} tok/s (best {number(answer.get('best_tok_s'))}{expected}{other})"


def allocator_text(answer: Mapping[str, Any]) -> str:
    return {True: "flat", False: "grows", None: "-"}[answer.get("allocator_flat")]


def checkpoint_text(value: Mapping[str, Any] | None) -> str:
    if not value:
        return "none yet"
    return f"step {value['step']}, {durations.format_duration(value['age_seconds'])} old, {value['kept']} kept"


def gpu_text(gpus: Sequence[Mapping[str, Any]]) -> str:
    """Return `0: 71/140 GiB 98 %  1: ...`."""
    parts = [
        f"{gpu['index']}: {number((gpu.get('used_mib') or 0) / 1024)}/{number((gpu.get('total_mib') or 0) / 1024)} GiB "
        f"{number(gpu.get('use_percent'))} %"
        for gpu in gpus
    ]
    return "  ".join(parts)


def command_lines(answer: Mapping[str, Any]) -> list[str]:
    """Return the exact commands for what comes next."""
    return rows((name, str(text)) for name, text in dict(answer.get("commands") or {}).items())


def health_panel(
    answer: Mapping[str, Any], judgement: Mapping[str, Any], comparison: Mapping[str, Any] | None
) -> list[str]:
    """Return the panel that ends a health check; `comparison` is that of a slow run with the known-good one."""
    mark = MARKS["running"] if judgement["ok"] else BAD
    return [
        f"{mark} {answer.get('run_id')} is {judgement['state']}: {judgement['message']}",
        *rows(
            [
                ("pid", str(answer.get("pid") or "-")),
                ("step", step_text(answer)),
                ("speed", speed_text(answer)),
            ]
        ),
        *problem_lines(answer.get("problems") or ()),
        *command_lines(answer),
        *(slow_lines(comparison) if comparison is not None else ()),
    ]


def slow_lines(comparison: Mapping[str, Any]) -> list[str]:
    """Return the differences between a slow run and the known-good one, likeliest cause first."""
    if not comparison:
        return ["  no known-good run to compare with"]
    head = f"  differences from known-good {comparison['run_a']} ({comparison['speed']['a']['best_tok_s']} tok/s):"
    lines = [f"    {place}. {item['text']}" for place, item in enumerate(comparison["differences"], start=1)]
    listed = truncate.first_lines(lines, 10, indent="    ")
    return [head, *(listed or ["    no recorded difference: check load, clocks and temperature of the box"])]


def table(head: Sequence[str], body: Sequence[Sequence[str]]) -> list[str]:
    """Return lines with aligned columns."""
    widths = [max(len(row[column]) for row in [head, *body]) for column in range(len(head))]
    return ["  " + "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths)).rstrip() for row in [head, *body]]


def runs_screen(answer: Mapping[str, Any]) -> list[str]:
    """Return the runs of a box as a table, newest last."""
    listed = answer["runs"]
    if not listed:
        return ["○ nothing was ever launched here"]
    head = ("RUN", "START (UTC)", "TOOK", "STEP", "BEST TOK/S", "LOSS", "STATE", "")
    return table(
        head,
        [
            (
                row["run_id"],
                row["started_at"],
                durations.format_duration(row["seconds"]),
                number(row["step"]),
                number(row["best_tok_s"]),
                number(row["loss"], ".3f"),
                row["state"],
                ", ".join(row["marks"]),
            )
            for row in listed
        ],
    )


def compare_screen(told: Mapping[str, Any]) -> list[str]:
    """Return what differs, likeliest culprit first."""
    speed = told["speed"]
    head = ("", "A", "B")
    body = [
        (name, number(speed["a"].get(key), form), number(speed["b"].get(key), form))
        for key, name, form in (
            ("tok_s", "tok/s", ".0f"),
            ("best_tok_s", "best tok/s", ".0f"),
            ("step", "step", ".0f"),
            ("loss", "loss", ".3f"),
            ("accept_len", "accept length", ".2f"),
            ("queue_depth", "queue", ".0f"),
            ("recompiles", "recompiles", ".0f"),
        )
    ]
    lines = [*(f"{side.upper()} {told[f'run_{side}']} ({told['states'][side]})" for side in "ab"), *table(head, body)]
    if told["run_a"] == told["run_b"]:
        return [*lines, "  one run only: compare again after the next one, or name two (-e run_a=ID -e run_b=ID)"]
    if not told["differences"]:
        return [*lines, "  nothing that is recorded differs: look at the box itself (load, clocks, temperature, disk)"]
    lines.append("  what differs, likeliest culprit first:")
    lines += [f"  {place}. {item['text']}" for place, item in enumerate(told["differences"], start=1)]
    return [*lines, *(f"    {text}" for text in told["code"]["diff"])]


def report_markdown(told: Mapping[str, Any]) -> list[str]:
    """Return the report of a run as Markdown."""
    record, status = told["record"], told["status"]
    lines = [f"# Run {told['run_id']}", "", f"State: **{told['state']}** ({told['detail']}).", ""]
    for name, text in (
        ("started", f"{told['started_at']} UTC by {record.get('operator') or '?'} on {record.get('host')}"),
        (
            "made of",
            f"environment {record.get('env_id')}, release {record.get('release_id')}, cache {record.get('cache_id')} "
            f"({record.get('cache_state')})",
        ),
        ("configuration", f"{record.get('config_file')} {' '.join(record.get('overrides') or ())}".strip()),
        ("hardware", str(record.get("hardware")) + (f", driver {record['driver']}" if record.get("driver") else "")),
        ("step", step_text(status)),
        ("speed", speed_text(status)),
        ("went on from", str(status.get("goes_on_from") or "-")),
    ):
        lines.append(f"- {name}: {text}")
    lines += ["", "## Course", "", "| step | loss | accept length | tok/s | lr |", "|---|---|---|---|---|"]
    lines += [
        f"| {row['step']} | {number(row['loss'], '.3f')} | {number(row['accept_len'], '.2f')} | {number(row['tok_s'])} "
        f"| {number(row['lr'], '.3g')} |"
        for row in told["curve"]
    ]
    if told["evaluations"]:
        lines += ["", "## Held-out data", "", "| step | loss | accept length |", "|---|---|---|"]
    lines += [
        f"| {row['step']} | {number(row['eval_loss'], '.3f')} | {number(row['eval_accept_len'], '.3f')} |"
        for row in told["evaluations"]
    ]
    lines += ["", "## Checkpoints", ""]
    lines += [
        f"- step {item['step']}{': ' + item['damage'] if item['damage'] else ''}" for item in told["checkpoints"]
    ] or ["none"]
    lines += ["", "## Problems", "", *(problem_lines(told["problems"]) or ["none"])]
    return [*lines, "", "## Last lines of the log", "", "```", *told["log_tail"], "```"]


def prune_screen(plan: Mapping[str, Any], *, done: bool) -> list[str]:
    """Return what was or would be removed, and what stays and why."""
    total = disk.format_bytes(sum(item["bytes"] for item in plan["remove"]))
    verb = "removed" if done else "would remove"
    count = len(plan["remove"])
    lines = [f"{verb} {count} {'thing' if count == 1 else 'things'}, {total}"]
    lines += [f"  - {item['path']} ({item['reason']}, {disk.format_bytes(item['bytes'])})" for item in plan["remove"]]
    if plan["remove"] and not done:
        lines.append("  .venv/bin/ansible-playbook playbooks/prune.yml -e prune_confirm=true removes them")
    return [*lines, *(f"  + {item['path']} stays: {item['reason']}" for item in plan["keep"])]


def verify_screen(answer: Mapping[str, Any]) -> list[str]:
    """Return what a person reads."""
    lines = [f"{'✔' if answer['ok'] else '✘'} run {answer['run_id']} ({answer['state']})"]
    lines += [check_line(name, said, str(answer["state"])) for name, said in answer["checks"].items()]
    if answer["pid"]:
        lines += rows([("pid", str(answer["pid"])), ("python", answer["python"]), ("torch", answer["torch"])])
    return lines + problem_lines(answer["problems"])


def check_line(name: str, said: str, state: str) -> str:
    """Return the line of one look; a log and a state are in no record, and an ended run has no process."""
    if said == verify.NO_PROCESS:
        return f"  ○ {name}: none, the run is {state}"
    good = {"log": "no known failure", "state": state}.get(name, "as recorded")
    return f"  {'✔' if said == 'ok' else '✘'} {name}: {good if said == 'ok' else said}"


def logs_screen(part: Mapping[str, Any]) -> list[str]:
    """Return what a person reads: the lines, and above them what of the time that was asked for is not there."""
    missing = []
    if part.get("cut"):
        missing.append(f"... only the last {logs.LIMIT >> 20} MiB of that time is shown; {part['log']} has all")
    if part.get("left_out"):
        missing.append(f"... {part['left_out']} earlier lines of that time are not shown; -e lines=N shows N")
    return [*missing, *part["lines"]]
