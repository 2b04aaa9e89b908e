"""Readiness of inputs and compile cache for a launch, so that a relaunch can skip their tasks."""

from __future__ import annotations

from .. import inputs, resolved_config
from ..compile_cache import cache
from ..core import gpus
from ..core.errors import OpsError
from ..core.paths import Layout
from ..run.trainer_command import Selection


def check(layout: Layout, selection: Selection, *, store: bool) -> dict[str, bool]:
    """Return whether the inputs match their records and the compile cache is warm; False when unknown."""
    try:
        resolved = resolved_config.resolve(layout, selection, store=store)
        recorded = all(inputs.inspect(layout, item).state == "recorded" for item in inputs.required_inputs(resolved))
        warm = cache.inspect(layout, cache.cache_key(layout, selection, resolved, gpus.survey())).warm
    except OpsError:  # the task that needs them reports the reason
        return {"inputs": False, "cache": False}
    return {"inputs": recorded, "cache": warm}
