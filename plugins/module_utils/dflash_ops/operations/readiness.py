"""What of a launch has no work left, told in the call that names environment and release."""

from __future__ import annotations

from .. import inputs
from ..compile_cache import cache
from ..core import gpus
from ..core.errors import OpsError
from ..core.paths import Layout
from ..run import trainer_command
from ..run.trainer_command import Selection


def of(layout: Layout, selection: Selection) -> dict[str, bool]:
    """Tell whether the inputs are the recorded ones and the compile cache is warm; false where that cannot be told."""
    try:
        resolved = trainer_command.resolved(layout, selection)
        recorded = all(inputs.inspect(layout, item).state == "recorded" for item in inputs.required_inputs(resolved))
        warm = cache.look(layout, cache.place(layout, selection, resolved, gpus.survey())).warm
    except OpsError:  # whoever needs it says why
        return {"inputs": False, "cache": False}
    return {"inputs": recorded, "cache": warm}
