"""A length of time as people type it: 90s, 10m, 2h, 1d, 1h30m, or a number of seconds."""

from __future__ import annotations

import re
import time

from .errors import OpsError

UNITS = {"d": 86400, "h": 3600, "m": 60, "s": 1}
PATTERN = re.compile("".join(rf"(?:(?P<{unit}>\d+){unit})?" for unit in UNITS))
FORMAT_HELP = "a length of time, as 90s, 10m, 2h, 1h30m or 600 (seconds)"


def parse(value: object) -> float:
    """Return the seconds of a typed length of time.

    Raises:
        OpsError: it is none.
    """
    text = str(value).strip().lower()
    if re.fullmatch(r"\d+(\.\d+)?", text):
        return float(text)
    found = PATTERN.fullmatch(text)
    if not text or found is None:
        raise OpsError(f"{value!r} is no length of time.", remedy=f"give {FORMAT_HELP}")
    return float(sum(int(count) * UNITS[unit] for unit, count in found.groupdict().items() if count))


def is_duration(value: object) -> bool:
    """Tell whether a value is a length of time."""
    try:
        parse(value)
    except OpsError:
        return False
    return True


def format_duration(seconds: float | None) -> str:
    """Return `42 s`, `3 m 05 s`, `2 h 07 m` or `3 d 04 h`."""
    if seconds is None:
        return "-"
    whole = int(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} m {whole % 60:02d} s"
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} m"
    return f"{whole // 86400} d {whole % 86400 // 3600:02d} h"


def format_timestamp(seconds: float) -> str:
    """Return epoch seconds as UTC text."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(seconds))
