"""A length of time as people type it: 90s, 10m, 2h, 1d, 1h30m, or a number of seconds."""

from __future__ import annotations

import re

from .errors import OpsError

UNITS = {"d": 86400, "h": 3600, "m": 60, "s": 1}
FORM = re.compile("".join(rf"(?:(?P<{unit}>\d+){unit})?" for unit in UNITS))
GIVE = "a length of time, as 90s, 10m, 2h, 1h30m or 600 (seconds)"


def seconds(value: object) -> float:
    """Return the seconds of a typed length of time.

    Raises:
        OpsError: it is none.
    """
    text = str(value).strip().lower()
    if re.fullmatch(r"\d+(\.\d+)?", text):
        return float(text)
    found = FORM.fullmatch(text)
    if not text or found is None:
        raise OpsError(f"{value!r} is no length of time.", remedy=f"give {GIVE}")
    return float(sum(int(count) * UNITS[unit] for unit, count in found.groupdict().items() if count))


def is_one(value: object) -> bool:
    """Tell whether a value is a length of time."""
    try:
        seconds(value)
    except OpsError:
        return False
    return True
