"""Loading of a TOML file and `--set section.key=value` options into `Config`; unknown keys are errors."""

from __future__ import annotations

import dataclasses
import difflib
import json
import math
import types
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dflash_trainer.config.schema import Config
from dflash_trainer.errors import ConfigError

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    import tomli as tomllib  # type: ignore[no-redef,import-not-found,unused-ignore]

_PATH_KEYS = (("target", "path"), ("drafter", "init_from"), ("data", "path"), ("data", "eval_path"))


def load_config(path: Path | str, overrides: Sequence[str] = ()) -> Config:
    """Read a TOML file, or a resolved configuration (.json), apply the overrides and check every value.

    Raises:
        ConfigError: naming the key, its value and the remedy.
    """
    file = Path(path).expanduser().absolute()
    return config_from_dict(_read_tables(file, overrides), base=file.parent)


def resolved_paths(path: Path | str, overrides: Sequence[str] = ()) -> dict[str, str]:
    """Return each path of the configuration with the path that it resolves to, so that a moved symlink is noticed."""
    file = Path(path).expanduser().absolute()
    tables = _read_tables(file, overrides)
    values = [str(tables.get(section, {}).get(name, "")) for section, name in _PATH_KEYS]
    return {
        str(file.parent / Path(value).expanduser()): _resolve(value, file.parent)
        for value in values
        if _is_path(value)
    }


def _read_tables(file: Path, overrides: Sequence[str]) -> dict[str, Any]:
    tables = _read_json(file) if file.suffix == ".json" else _read_toml(file)
    for override in overrides:
        _apply_override(tables, override)
    return tables


def config_from_dict(tables: Mapping[str, Any], *, base: Path) -> Config:
    """Build a Config from nested plain values; relative paths are resolved against `base`. Raises ConfigError."""
    sections = typing.get_type_hints(Config)
    for name, table in tables.items():
        if name not in sections:
            raise ConfigError(name, table, "unknown section", _suggest(name, sections))
        if not isinstance(table, Mapping):
            raise ConfigError(name, table, "not a section", f"write [{name}] with its keys below")
    built = {name: _section(kind, name, tables.get(name, {}), base) for name, kind in sections.items()}
    return Config(**built)


def _read_toml(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        reason = error.strerror or "cannot be read"
        raise ConfigError("--config", str(file), reason, "give the path of a TOML file") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError("--config", str(file), f"not valid TOML ({error})", "correct that line") from error


def _read_json(file: Path) -> dict[str, Any]:
    try:
        tables = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError("--config", str(file), error.strerror or "cannot be read", "check the path") from error
    except ValueError as error:
        raise ConfigError("--config", str(file), f"not valid JSON ({error})", "launch the run again") from error
    if not isinstance(tables, dict):
        raise ConfigError("--config", str(file), "not a JSON object", "launch the run again")
    return tables


def _apply_override(tables: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    section, dot, name = key.strip().partition(".")
    if not (equals and dot and section and name):
        raise ConfigError("--set", override, "not section.key=value", "write for example --set optimizer.lr=3e-4")
    table = tables.setdefault(section, {})
    if not isinstance(table, dict):
        raise ConfigError(section, table, "not a section", f"write [{section}] with its keys below")
    table[name] = _override_value(text.strip())


def _override_value(text: str) -> Any:
    """Parse a TOML value; anything else is a string, so that paths need no quotes."""
    try:
        parsed = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    return parsed["value"] if list(parsed) == ["value"] else text


def _section(kind: Any, section: str, table: Mapping[str, Any], base: Path) -> Any:
    hints = typing.get_type_hints(kind)
    fields = {field.name: field for field in dataclasses.fields(kind)}
    values: dict[str, Any] = {}
    for name, value in table.items():
        key = f"{section}.{name}"
        if name not in fields:
            raise ConfigError(key, value, "unknown key", _suggest(name, fields))
        values[name] = _convert(key, value, hints[name])
        if (section, name) in _PATH_KEYS:
            values[name] = _resolve(values[name], base)
    for name, field in fields.items():
        required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if required and name not in values:
            raise ConfigError(f"{section}.{name}", None, "missing", f"set {name} in section [{section}]")
    return kind(**values)


def _convert(key: str, value: Any, hint: Any) -> Any:
    """Check `value` against the type of a field; lists become tuples, and integers become floats where needed."""
    origin = typing.get_origin(hint)
    if origin is typing.Literal:
        choices = typing.get_args(hint)
        if value not in choices:
            raise ConfigError(key, value, "not a valid choice", "use one of " + ", ".join(map(str, choices)))
        return value
    if origin in (tuple, types.GenericAlias):
        if not isinstance(value, (list, tuple)):
            raise ConfigError(key, value, "not a list", "write it as [a, b]")
        return tuple(_convert(key, item, typing.get_args(hint)[0]) for item in value)
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, hint) or (isinstance(value, bool) and hint is not bool):
        raise ConfigError(key, value, f"not {_type_name(hint)}", f"use {_type_name(hint)}")
    if isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(key, value, "not a finite number", "use a finite number")
    return value


def _type_name(hint: Any) -> str:
    return {int: "an integer", float: "a number", bool: "true or false", str: "a string"}[hint]


def _resolve(path: str, base: Path) -> str:
    return str((base / Path(path).expanduser()).resolve()) if _is_path(path) else path


def _is_path(value: str) -> bool:
    return bool(value) and not value.startswith(("package:", "random:"))


def _suggest(name: str, known: Mapping[str, Any]) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {close[0]}?" if close else "use one of " + ", ".join(known)
