"""Log of a run: the time of each line, the lines of a period, and notes about missing lines."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from boxes import Box, until
from dflash_controller import screens
from dflash_ops.core import durations
from dflash_ops.core.errors import OpsError
from dflash_ops.core.paths import Layout
from dflash_ops.monitor import logs
from dflash_ops.run import runs
from dflash_ops.run.start_script import start_script

RUN = "20260101T000000Z-demo"
MINUTE = 60.0


def write_log(layout: Layout, *lines: str) -> runs.Run:
    folder = layout.run(RUN)
    folder.mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps({"run_id": RUN}))
    (folder / "train.log").write_text("".join(f"{line}\n" for line in lines))
    return runs.load(layout, RUN)


def stamped(text: str, *, ago: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ ", time.gmtime(time.time() - ago)) + text


def test_since_returns_every_line_of_that_time(layout: Layout) -> None:
    recent = [stamped(f"step {number}", ago=5 * MINUTE) for number in range(60)]
    write_log(layout, stamped("old", ago=20 * MINUTE), *recent, "a line of a library without a time")
    found = logs.last(layout, RUN, since=durations.parse("10m"))
    assert found["lines"] == [*recent, "a line of a library without a time"]
    assert screens.logs_screen(found) == found["lines"]
    assert logs.last(layout, RUN, since=MINUTE)["lines"] == []
    assert len(logs.last(layout, RUN)["lines"]) == logs.DEFAULT_LINES


def test_omitted_lines_are_counted(layout: Layout) -> None:
    write_log(layout, *(stamped(f"step {number}", ago=MINUTE) for number in range(10)))
    shown = screens.logs_screen(logs.last(layout, RUN, since=10 * MINUTE, lines=4))
    assert shown[0] == "... 6 earlier lines of that time are not shown; -e lines=N shows N lines"
    assert len(shown) == 5


def test_truncation_of_a_long_log_is_reported(layout: Layout) -> None:
    run = write_log(layout, *(stamped("x" * 1000, ago=MINUTE) for _ in range(1100)))
    shown = screens.logs_screen(logs.last(layout, RUN, since=10 * MINUTE))
    assert shown[0] == f"... only the last 1 MiB of that time is shown; {run.log} has all of it"


def test_log_without_times_is_filtered_by_its_steps(layout: Layout) -> None:
    run = write_log(layout, "step 1/9 a", "step 2/9 b", "step 3/9 c")
    rows = [{"step": step, "time": time.time() - (4 - step) * MINUTE} for step in (1, 2, 3)]
    run.metrics.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    assert logs.last(layout, RUN, since=1.5 * MINUTE)["lines"] == ["step 3/9 c"]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("10m", 600), ("2h", 7200), ("1d", 86400), ("1h30m", 5400), ("600", 600), (600, 600), ("0.5", 0.5)],
)
def test_duration_is_parsed(text: object, seconds: float) -> None:
    assert durations.parse(text) == seconds


@pytest.mark.parametrize("text", ["", "10x", "m", "-5", "10m2h", "ten", "nan", None, "1.5h"])
def test_invalid_duration_is_rejected(text: object) -> None:
    with pytest.raises(OpsError, match="is not a duration"):
        durations.parse(text)


def test_each_line_gets_its_time_whatever_its_bytes(tmp_path: Path) -> None:
    run = tmp_path / "a run"
    run.mkdir()
    command = r"printf 'a\\b %%s\n  \xff \303\244\nno end'; exit 3"
    script = start_script(
        run_id=RUN, run=run, folder=tmp_path, environment={"PATH": "/usr/bin:/bin"},
        command=["/bin/bash", "-c", command], bash="/bin/bash",
    )  # fmt: skip
    (run / "start.sh").write_text(script)
    assert subprocess.run(["/bin/bash", str(run / "start.sh")], check=False, capture_output=True).returncode == 3
    lines = (run / "train.log").read_bytes().splitlines()
    end = f"run {RUN} ended with rc 3".encode()
    assert [line[21:] for line in lines] == [b"a\\b %s", b"  \xff \xc3\xa4", b"no end", end]
    for line in lines:
        at = logs.written_at(line.decode(errors="replace"))
        assert at is not None
        assert abs(time.time() - at) < MINUTE


@pytest.mark.skipif(not shutil.which("tmux"), reason="tmux is not installed")
class TestPlaybook:
    """playbooks/logs.yml as an operator runs it."""

    def test_since_accepts_a_duration_and_names_an_invalid_one(self, box: Box, repo: Path) -> None:
        run = box.launch()
        until(lambda: "step 2/" in run.log.read_text())
        program = str(Path(sys.executable).with_name("ansible-playbook"))
        command = [program, "playbooks/logs.yml", "-e", f"dflash_root={box.layout.root}", "-e", "dflash_workspace="]
        good = subprocess.run([*command, "-e", "since=10m"], cwd=repo, capture_output=True, text=True, check=False)
        assert good.returncode == 0, good.stdout + good.stderr
        assert "Z phase training: from step 0\n" in good.stdout
        bad = subprocess.run([*command, "-e", "since=10x"], cwd=repo, capture_output=True, text=True, check=False)
        assert bad.returncode == 2
        assert "since='10x': cannot be used; give a duration such as 90s, 10m, 2h" in bad.stdout
