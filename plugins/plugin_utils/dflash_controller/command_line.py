"""Validation of -e and --tags: values of known variables, and names that would be ignored silently."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Collection, Iterable
from pathlib import Path

from dflash_ops.core import durations

DURATION = "duration"
SIMILAR = 0.8  # of 1.0: a name this similar to one of ours is a typo
JSON_PLAYBOOKS = ("status", "logs", "verify", "runs", "compare", "report", "deploy", "relaunch", "rollback")
RUN_PLAYBOOKS = ("status", "logs", "verify", "report", "stop", "relaunch", "promote", "rollback")
TAGS = ("stop", "env", "release", "warmup", "launch", "verify")
ALWAYS_TAGS = ("all", "always", "never", "tagged", "untagged")


@dataclasses.dataclass(frozen=True)
class PlaybookVariable:
    """A variable that playbooks read from the command line.

    Args:
        type: type of its value as in argument specs, or DURATION.
        give: description of a valid value, for the remedy.
        playbooks: the playbooks that read it.
        least: the smallest valid number.
    """

    type: str
    give: str
    playbooks: tuple[str, ...]
    least: int = 0


RUN_ID = "the id of a run (playbooks/runs.yml lists them)"
CONTROLLER_FILE = "the name of a file on the controller"
VARIABLES = {
    "run": PlaybookVariable("str", RUN_ID, RUN_PLAYBOOKS),
    "run_a": PlaybookVariable("str", RUN_ID, ("compare",)),
    "run_b": PlaybookVariable("str", RUN_ID, ("compare",)),
    "lines": PlaybookVariable("int", "a number of lines, 0 or more", ("logs",)),
    "since": PlaybookVariable(DURATION, durations.FORMAT_HELP, ("logs",)),
    "follow": PlaybookVariable(DURATION, durations.FORMAT_HELP, ("logs",)),
    "last": PlaybookVariable("int", "a number of runs, 0 for all", ("runs",)),
    "status_strict": PlaybookVariable("bool", "true or false", ("status",)),
    "json_out": PlaybookVariable("str", CONTROLLER_FILE, JSON_PLAYBOOKS),
    "report_out": PlaybookVariable("str", CONTROLLER_FILE, ("report",)),
    "job": PlaybookVariable("str", "the name of a job (stop.yml lists the running ones), or all", ("stop",)),
    "stop_now": PlaybookVariable("bool", "true or false", ("stop", "relaunch", "rollback")),
    "prune_keep_runs": PlaybookVariable("int", "a number of runs, 1 or more", ("prune",), least=1),
    "prune_confirm": PlaybookVariable("bool", "true or false", ("prune",)),
}


def value_problem(name: str, given: object, parsed: object) -> str:
    """Return what is wrong with a variable's value, empty when nothing is; `parsed` is None for a wrong type."""
    variable = VARIABLES[name]
    number = isinstance(parsed, (int, float)) and not isinstance(parsed, bool)
    bad = parsed is None or parsed == "" or (number and not variable.least <= float(str(parsed)) < float("inf"))
    return f"{name}={given!r}: cannot be used; give {variable.give}" if bad else ""


def playbook_names(arguments: Iterable[str], repo: Path) -> list[str]:
    """Return the names of the playbooks on the command line; none when one of them is not from this checkout."""
    paths = [Path(argument).resolve() for argument in arguments]
    ours = [path.parent in (repo, repo / "playbooks") and path.suffix == ".yml" for path in paths]
    return [path.stem for path in paths] if all(ours) else []


def unread(names: Iterable[str], playbooks: Collection[str]) -> list[str]:
    """Return one problem for each of our variables that none of these playbooks reads."""
    problems = []
    for name in names:
        if name in VARIABLES and playbooks and not set(playbooks) & set(VARIABLES[name].playbooks):
            read = [other for other, variable in VARIABLES.items() if set(playbooks) & set(variable.playbooks)]
            instead = f"it reads {', '.join(read)}" if read else "it reads no such variable"
            problems.append(f"{name}: not read by {' and '.join(playbooks)}; {instead}")
    return problems


def unknown(
    typed: Iterable[str], inventory: Iterable[str], known: Collection[str], prefixes: Collection[str]
) -> list[str]:
    """Return one problem for each name that looks like one of our variables but does not exist.

    Args:
        typed: names given with -e, where any similar name counts as a typo.
        inventory: names of every variable of the box, where only those with one of our prefixes count.
        known: every variable that exists.
        prefixes: prefixes of our variables.
    """
    typed = set(typed) - set(known)
    prefixed = {name for name in {*typed, *inventory} - set(known) if name.startswith(tuple(prefixes))}
    problems = [f"{name}: unknown variable{_similar(name, known, 0.6)}" for name in sorted(prefixed)]
    for name in sorted(typed - prefixed):
        suggestion = _similar(name, known, SIMILAR) or _longer(name, known)
        problems += [f"{name}: nothing reads it{suggestion}"] if suggestion else []
    return problems


def _similar(name: str, known: Collection[str], similarity: float) -> str:
    near = difflib.get_close_matches(name, sorted(known), 1, similarity)
    return f"; did you mean {near[0]}?" if near else ""


def _longer(name: str, known: Collection[str]) -> str:
    """Suggest `training_run_label` for `label`."""
    longer = sorted(other for other in known if other.endswith(f"_{name}"))
    return f"; did you mean {' or '.join(longer)}?" if 0 < len(longer) < 4 else ""


def tag_problems(tags: Iterable[str], playbooks: Collection[str], role_tags: Collection[str]) -> list[str]:
    """Return one problem for each tag that selects nothing: alone, it would make a playbook succeed and do nothing."""
    known = {*ALWAYS_TAGS, *role_tags, *(TAGS if "relaunch" in playbooks else ())}
    return [
        f"--tags {tag}: no such tag in {' and '.join(playbooks)}; relaunch.yml has {', '.join(TAGS)}"
        for tag in tags
        if playbooks and tag not in known
    ]
