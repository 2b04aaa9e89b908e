"""Durations as people type them: 90s, 10m, 2h, 1d, 1h30m, or a number of seconds."""

from __future__ import annotations

import re
import time

from .errors import OpsError

UNITS = {"d": 86400, "h": 3600, "m": 60, "s": 1}
PATTERN = re.compile("".join(rf"(?:(?P<{unit}>\d+){unit})?" for unit in UNITS))
FORMAT_HELP = "a duration such as 90s, 10m, 2h, 1h30m or 600 (seconds)"


def parse(value: object) -> float:
    """Return the seconds of a duration.

    Raises:
        OpsError: the value is not a duration.
    """
    text = str(value).strip().lower()
    if re.fullmatch(r"\d+(\.\d+)?", text):
        return float(text)
    match = PATTERN.fullmatch(text)
    if not text or match is None:
        raise OpsError(f"{value!r} is not a duration.", remedy=f"give {FORMAT_HELP}")
    return float(sum(int(count) * UNITS[unit] for unit, count in match.groupdict().items() if count))


def is_duration(value: object) -> bool:
    """Return whether a value is a duration."""
    try:
        parse(value)
    except OpsError:
        return False
    return True


def format_duration(seconds: float | None) -> str:
    """Return `42 s`, `3 m 05 s`, `2 h 07 m` or `3 d 04 h`; `-` for None."""
    if seconds is None:
        return "-"
    total = int(seconds)
    if total < 60:
        return f"{total} s"
    if total < 3600:
        return f"{total // 60} m {total % 60:02d} s"
    if total < 86400:
        return f"{total // 3600} h {total % 3600 // 60:02d} m"
    return f"{total // 86400} d {total % 86400 // 3600:02d} h"


def format_timestamp(seconds: float) -> str:
    """Return epoch seconds as UTC text."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(seconds))
