"""Report, and the best speed on every screen."""

from __future__ import annotations

import json

from boxes import Box, until
from dflash_controller import screens
from dflash_ops.history import comparison, known_good, run_history
from dflash_ops.monitor import status
from dflash_ops.operations import compare_runs
from dflash_ops.run import metrics


def test_report_has_a_readable_start_time_and_every_evaluation(box: Box) -> None:
    run = box.launch("optimizer.max_steps=2", "test.pause=0")
    until(lambda: (run.folder / "exit.json").exists())
    with run.metrics.open("a") as stream:
        stream.write(json.dumps({"step": 3, "tok_s": 1.0, "loss": 7.0, "eval_loss": 7.343, "eval_accept_len": 1.047}))
        stream.write("\n")
    report = run_history.report(box.layout, run)
    assert report["evaluations"] == [{"step": 3, "eval_loss": 7.343, "eval_accept_len": 1.047}]
    lines = screens.report_markdown(report)
    assert "| 3 | 7.343 | 1.047 |" in lines
    stamp = run.run_id
    assert f"- started: {stamp[:4]}-{stamp[4:6]}-{stamp[6:8]} " in "\n".join(lines)
    assert "driver None" not in "\n".join(lines)


def test_the_best_speed_is_the_same_on_every_screen(box: Box) -> None:
    run = box.launch("optimizer.max_steps=2", "test.pause=0", speed_steps=4)
    until(lambda: (run.folder / "exit.json").exists())
    speeds = [100, 100, 100, 100, 900, 900, 900, 900, *[100] * 8]  # the best ten steps are slower than the best four
    run.metrics.write_text("".join(json.dumps({"step": n, "tok_s": value}) + "\n" for n, value in enumerate(speeds)))
    shown = [
        status.snapshot(box.layout)["best_tok_s"],
        run_history.listing(box.layout)[0]["best_tok_s"],
        comparison.speed_of(run)["best_tok_s"],
        known_good.entry_of(box.layout, run, by="me")["speed"]["best_tok_s"],
    ]
    assert shown == [900.0] * 4


def test_best_speed_is_the_best_window_and_never_falls() -> None:
    rows = [{"tok_s": value} for value in [50] * 5 + [100] * 10 + [50] * 25]
    best = [metrics.speed(rows[:count], window=10).best or 0 for count in range(10, len(rows) + 1)]
    assert best[-1] == 100.0
    assert best == sorted(best)


def test_comparison_of_a_run_with_itself_is_reported(box: Box) -> None:
    run = box.launch("optimizer.max_steps=2", "test.pause=0")
    shown = screens.compare_screen(compare_runs.compare_runs(box.layout, run.run_id, run.run_id))
    assert "A and B are the same run" in shown[-1]
