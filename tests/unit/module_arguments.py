"""Module parameters as the roles pass them."""

from __future__ import annotations

from typing import Any


def run_params(*overrides: str, **options: Any) -> dict[str, Any]:
    """Return the parameters of dflash_run."""
    return {
        "env_id": "e1",
        "release_id": "r1",
        "config": "demo.toml",
        "overrides": list(overrides),
        "environment": {},
        "label": "",
        "session": "dflash",
        "operator": "me@here",
        "resume": "auto",
        "secrets": {},
        "expected_tok_s": 0.0,
        "tolerance": 0.8,
        "speed_steps": 10,
        "script_link": "",
        "notify": {},
        "if_running": "refuse",
        "repeat_finished": True,
        "wipe": False,
        "after_stop": False,
        "allow_cold": True,
        "origin": {},
        "mark_bad": [],
        **options,
    }


def cache_params(*overrides: str, **options: Any) -> dict[str, Any]:
    """Return the parameters of dflash_compile_cache."""
    return {
        **run_params(*overrides),
        "start": True,
        "wipe": False,
        "archive": False,
        "restore": "",
        "restore_required": True,
        "if_running": "refuse",
        **options,
    }
