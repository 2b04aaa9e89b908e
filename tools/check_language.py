#!/usr/bin/env python3
"""Report words and sentence forms that this project does not use in docstrings, comments, messages and docs.

    python tools/check_language.py [FILE...]    default: every file that git tracks

Exit code: 0 when nothing was found, 1 otherwise.
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SUFFIXES = {".py", ".yml", ".yaml", ".md", ".toml", ".sh", ".j2"}
NOT_PROSE = ("trainer/data/", "tools/check_language.py", ".venv", "docs/images/")

PHRASES = {
    r"told|tells? (?:people|an operator|you)": "reported, printed, passed",
    r"said": "reported, printed, stated",
    r"(?:a|one|each|every|first|second) look\b(?! at)": "check",
    r"(?:goes|go|going|gone|went) on\b(?! (?:the|a|to))": "continues, resumes, keeps running",
    r"beside": "next to, existing, alongside",
    r"aside": "staging directory",
    r"anew": "again, from scratch",
    r"(?:comes?|came) of": "results from",
    r"at work": "running, active",
    r"lent|lends?": "borrowed, reused",
    r"stands? there|lies there": "is there, exists",
    r"lives?\b(?= (?:on|in|there|here|at|and|or|is|while|when)|[.,;:])|living": "running, is located",
    r"asked of": "requested from",
    r"(?:holds?|held|holding|takes?|give back) the box": "holds the operator lock",
    r"is no (?!longer|more|need|point|way)\w+|are no (?!longer|more)\w+": "is not a ...",
    r"so (?:do|does|is|are) (?:they|it|this)": "rewrite",
    r"that which|what is no\b": "rewrite",
    r"(?:its|own|these|our|those|their) words": "arguments, message",
}
PATTERNS = [(re.compile(rf"\b(?:{form})\b", re.IGNORECASE), instead) for form, instead in PHRASES.items()]
IDENTIFIERS = {
    "told": "result, report, answer",
    "said": "message, verdict",
    "beside": "existing, staging, neighbour",
    "aside": "staging",
    "living": "running",
    "lent": "borrowed",
    "asked": "requested",
    "looked": "checked",
    "goes_on": "resumes",
    "going_on": "running",
    "words": "arguments, lines, parts",
}
OPENING = re.compile(r"(?:What|Which|Whether|How|Where|Who|When) ")


def problems_of(text: str) -> Iterator[str]:
    """Yield one message for each phrase in a text."""
    for pattern, instead in PATTERNS:
        for found in pattern.finditer(text):
            yield f"{found.group()!r}: write {instead}"


def python_texts(source: str) -> Iterator[tuple[int, str]]:
    """Yield the line and text of docstrings, messages (strings of three words or more) and comments."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.count(" ") > 1:
            yield node.lineno, node.value
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def identifiers(source: str) -> Iterator[tuple[int, str]]:
    """Yield one problem for each name that is on the list."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.NAME and token.string in IDENTIFIERS:
            yield token.start[0], f"name {token.string!r}: use {IDENTIFIERS[token.string]}"


def docstring_openings(source: str) -> Iterator[tuple[int, str]]:
    """Yield docstrings that open with a question word."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            text = ast.get_docstring(node) or ""
            if OPENING.match(text):
                yield getattr(node, "lineno", 1), f"docstring opens with {text.split()[0]!r}: begin with a verb or noun"


def lines_of(source: str) -> Iterator[tuple[int, str]]:
    """Yield the lines of a text file, without fenced code and inline code."""
    fenced = False
    for number, line in enumerate(source.splitlines(), start=1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif not fenced:
            yield number, re.sub(r"`[^`]*`", "", line)


def check(file: Path) -> list[str]:
    """Return one line for each problem of a file."""
    source = file.read_text(encoding="utf-8")
    python = file.suffix == ".py"
    texts = python_texts(source) if python else lines_of(source)
    found = [(line, problem) for line, text in texts for problem in problems_of(text)]
    found += [*docstring_openings(source), *identifiers(source)] if python else []
    name = file.resolve().relative_to(ROOT)
    return [f"{name}:{line}: {problem}" for line, problem in sorted(found)]


def tracked_files() -> list[Path]:
    """Return the prose and code files that git tracks."""
    done = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    return [ROOT / name for name in done.stdout.splitlines() if not name.startswith(NOT_PROSE)]


def main(arguments: list[str]) -> int:
    """Check the named files, or all tracked ones."""
    files = [Path(name) for name in arguments] or tracked_files()
    found = [line for file in files if file.suffix in SUFFIXES and file.is_file() for line in check(file)]
    print("\n".join(found), end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
