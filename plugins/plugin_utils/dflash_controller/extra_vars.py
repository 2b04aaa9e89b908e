"""What is typed behind -e and --tags: known words judged, and words that would silently mean nothing."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Collection, Iterable
from pathlib import Path

from dflash_ops.core import durations

DURATION = "duration"
ALIKE = 0.8  # of 1.0: a name this close to one of ours is a slip of the keyboard
READERS = ("status", "logs", "verify", "runs", "compare", "report", "deploy", "relaunch", "rollback")
ONE_RUN = ("status", "logs", "verify", "report", "stop", "relaunch", "promote", "rollback")
TAGS = ("stop", "env", "release", "warmup", "launch", "verify")
ALWAYS_TAGS = ("all", "always", "never", "tagged", "untagged")


@dataclasses.dataclass(frozen=True)
class Word:
    """A word that a playbook reads.

    Args:
        type: of its value, as argument specs name it, or DURATION.
        give: what the value should be, for the remedy.
        verbs: the playbooks that read it.
        least: the smallest number that makes sense.
    """

    type: str
    give: str
    verbs: tuple[str, ...]
    least: int = 0


WORDS = {
    "run": Word("str", "the id of a run (playbooks/runs.yml lists them)", ONE_RUN),
    "run_a": Word("str", "the id of a run (playbooks/runs.yml lists them)", ("compare",)),
    "run_b": Word("str", "the id of a run (playbooks/runs.yml lists them)", ("compare",)),
    "lines": Word("int", "a number of lines, 0 or more", ("logs",)),
    "since": Word(DURATION, durations.FORMAT_HELP, ("logs",)),
    "follow": Word(DURATION, durations.FORMAT_HELP, ("logs",)),
    "last": Word("int", "a number of runs, 0 for all", ("runs",)),
    "status_strict": Word("bool", "true or false", ("status",)),
    "json_out": Word("str", "the name of a file on the controller", READERS),
    "report_out": Word("str", "the name of a file on the controller", ("report",)),
    "job": Word("str", "the name of a job (stop.yml says which go on), or all for every one", ("stop",)),
    "stop_now": Word("bool", "true or false", ("stop", "relaunch", "rollback")),
    "prune_keep_runs": Word("int", "a number of runs, 1 or more", ("prune",), least=1),
    "prune_confirm": Word("bool", "true or false", ("prune",)),
}


def value_problem(name: str, given: object, parsed: object) -> str:
    """Say what is wrong with the value of a word; `parsed` is None when it is not of the word's type."""
    word = WORDS[name]
    number = isinstance(parsed, (int, float)) and not isinstance(parsed, bool)
    bad = parsed is None or parsed == "" or (number and not word.least <= float(str(parsed)) < float("inf"))
    return f"{name}={given!r}: cannot be used; give {word.give}" if bad else ""


def verbs_of(playbooks: Iterable[str], repo: Path) -> list[str]:
    """Return the verbs among the playbooks that were typed; none when one of them is not ours."""
    paths = [Path(one).resolve() for one in playbooks]
    ours = [path.parent in (repo, repo / "playbooks") and path.suffix == ".yml" for path in paths]
    return [path.stem for path in paths] if all(ours) else []


def unread(names: Iterable[str], verbs: Collection[str]) -> list[str]:
    """Name words of ours that none of these playbooks reads."""
    told = []
    for name in names:
        if name in WORDS and verbs and not set(verbs) & set(WORDS[name].verbs):
            read = [one for one, word in WORDS.items() if set(verbs) & set(word.verbs)]
            instead = f"it reads {', '.join(read)}" if read else "it reads no such word"
            told.append(f"{name}: {' and '.join(verbs)} would not read it; {instead}")
    return told


def unknown(
    typed: Iterable[str], inventory: Iterable[str], known: Collection[str], prefixes: Collection[str]
) -> list[str]:
    """Name what looks like a variable of ours and is none.

    Args:
        typed: names given with -e, where a slip of the keyboard counts too.
        inventory: names of every variable of the box, where only what begins like one of ours counts.
        known: every variable and word there is.
        prefixes: what the names of ours begin with.
    """
    typed = set(typed) - set(known)
    begins = {name for name in {*typed, *inventory} - set(known) if name.startswith(tuple(prefixes))}
    told = [f"{name}: there is no such variable{_instead(name, known, 0.6)}" for name in sorted(begins)]
    for name in sorted(typed - begins):
        instead = _instead(name, known, ALIKE) or _tail(name, known)
        told += [f"{name}: nothing reads it{instead}"] if instead else []
    return told


def _instead(name: str, known: Collection[str], alike: float) -> str:
    near = difflib.get_close_matches(name, sorted(known), 1, alike)
    return f"; did you mean {near[0]}?" if near else ""


def _tail(name: str, known: Collection[str]) -> str:
    """Suggest `training_run_label` for `label`."""
    longer = sorted(one for one in known if one.endswith(f"_{name}"))
    return f"; did you mean {' or '.join(longer)}?" if 0 < len(longer) < 4 else ""


def tag_problems(tags: Iterable[str], verbs: Collection[str], of_roles: Collection[str]) -> list[str]:
    """Name tags that no part of these playbooks has: with them alone a playbook would do nothing and succeed."""
    known = {*ALWAYS_TAGS, *of_roles, *(TAGS if "relaunch" in verbs else ())}
    return [
        f"--tags {tag}: no part of {' and '.join(verbs)} has it; relaunch.yml has {', '.join(TAGS)}"
        for tag in tags
        if verbs and tag not in known
    ]
