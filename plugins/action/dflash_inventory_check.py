"""Judges what the operator wrote, on the controller only; one message names every word that cannot work."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml
from ansible import context
from ansible.errors import AnsibleError
from ansible.module_utils.common.arg_spec import ArgumentSpecValidator
from ansible.plugins.loader import action_loader
from ansible.utils.vars import load_extra_vars

action_loader.get("dflash_base", class_only=True)

from dflash_controller import extra_vars, inventory
from dflash_controller.action_base import DflashAction
from dflash_controller.container_ids import meant
from dflash_ops.core import disk, durations
from dflash_ops.core.errors import OpsError
from dflash_ops.core.paths import at_home

REPO: Path = DflashAction.repo
ROLES = sorted(path.name for path in (REPO / "roles").iterdir() if (path / "meta/argument_specs.yml").is_file())
PREFIXES = ("dflash_", "prune_", *(f"{role}_" for role in ROLES))
OUR_FACTS = ("dflash_env", "dflash_release", "dflash_lock_token")


class ActionModule(DflashAction):  # type: ignore[misc]
    """Arguments are variable names and values."""

    _requires_connection = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Collect every problem, those of the configuration included."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        given = {name: value for name, value in self._task.args.items() if value is not None}
        found = inventory.way_problems(self._connection.transport) + inventory.problems(given, REPO)
        if not [text for text in found if text.startswith(("dflash_config", "dflash_overrides"))]:
            try:
                inventory.require_config(given["dflash_config"], given["dflash_overrides"], REPO)
            except OpsError as error:
                found.append(str(error))
        found += self.typed(task_vars or {})
        found += self.commanded(task_vars or {})
        if self._connection.transport == "pct":
            found += self.container_problems(task_vars or {})
        if self._connection.transport == "local":
            found += files_instead_of_folders(given, found)
        if found:
            return {
                **result,
                "failed": True,
                "problems": found,
                "msg": "\n".join(
                    ["Nothing was changed.", *(f"({number}) {text}" for number, text in enumerate(found, start=1))]
                ),
            }
        return {**result, "changed": False}

    def typed(self, task_vars: Mapping[str, Any]) -> list[str]:
        """Judge every other variable by its role's argument_specs, which would speak only at the role's turn."""
        found = []
        for name, option in role_options(REPO).items():
            if name not in task_vars or name in self._task.args or option.get("no_log"):
                continue
            try:
                value = self._templar.template(task_vars[name])
            except AnsibleError:  # made of something that is known later, or of a vault that a reader need not open
                continue
            found += judged(name, value, option)
        return found

    def container_problems(self, task_vars: Mapping[str, Any]) -> list[str]:
        """Return where provision.yml would make another container than the one that this box is."""
        boxes = self.boxes_behind(task_vars)
        login = next((box.login for box in boxes if box.name == task_vars["inventory_hostname"]), None)
        hosts = [host for host in self.proxmox_hosts(task_vars) if host.login == login and host.number]
        return [text for host in hosts for text in inventory.raised_as_is(lambda one: meant(one, boxes), host)]

    def commanded(self, task_vars: Mapping[str, Any]) -> list[str]:
        """Judge what was typed behind -e and --tags, and what only looks like a variable of ours."""
        words_given = [name for name in extra_vars.WORDS if name in task_vars]
        extra = load_extra_vars(self._loader)
        verbs = extra_vars.verbs_of(context.CLIARGS.get("args") or (), REPO)
        found = [self.word(name, task_vars[name]) for name in words_given]
        found += extra_vars.unread(extra, verbs)
        found += extra_vars.unknown(extra, task_vars, known_names(REPO), PREFIXES)
        found += extra_vars.tag_problems(context.CLIARGS.get("tags") or (), verbs, role_tags(REPO))
        return [text for text in found if text]

    def word(self, name: str, given: Any) -> str:
        """Judge the value of one word of a playbook."""
        try:
            value = self._templar.template(given)
        except AnsibleError:
            return ""
        return extra_vars.value_problem(name, value, parsed(name, value))


def parsed(name: str, value: Any) -> Any:
    """Return the value of a word in the word's type; None when it is not of that type."""
    kind = extra_vars.WORDS[name].type
    if kind == extra_vars.DURATION:
        return durations.parse(value) if durations.is_duration(value) else None
    checked = ArgumentSpecValidator({name: {"type": kind}}).validate({name: value})
    return None if checked.error_messages else checked.validated_parameters[name]


def known_names(repo: Path) -> set[str]:
    """Return every variable and word that something here reads or sets."""
    return {*specified(repo, ROLES), *yaml_names(repo / "group_vars/all/dflash.yml"), *extra_vars.WORDS, *OUR_FACTS}


def yaml_names(file: Path) -> list[str]:
    return list(yaml.safe_load(file.read_text(encoding="utf-8")))


def role_tags(repo: Path) -> set[str]:
    """Return the tags that the roles themselves put on their parts."""
    tasks = [task for file in repo.glob("roles/*/tasks/main.yml") for task in yaml.safe_load(file.read_text("utf-8"))]
    return {tag for task in tasks for tag in task.get("tags") or ()}


def role_options(repo: Path) -> dict[str, dict[str, Any]]:
    """Return every variable of the roles that a training is made of, with its specification."""
    return specified(repo, [role for role in ROLES if role != "gpu_container"])  # provision.yml's, on the Proxmox host


def specified(repo: Path, roles: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Return the variables of these roles, with their specifications."""
    found: dict[str, dict[str, Any]] = {}
    for role in roles:
        file = repo / "roles" / role / "meta/argument_specs.yml"
        specs = yaml.safe_load(file.read_text(encoding="utf-8"))["argument_specs"]
        found.update(specs["main"].get("options") or {})
    return found


def judged(name: str, value: Any, option: Mapping[str, Any]) -> list[str]:
    """Return what the role's own check would say about a value, then what its number means."""
    spec = {key: option[key] for key in ("type", "choices", "elements") if key in option}
    checked = ArgumentSpecValidator({name: spec}).validate({name: value})
    if checked.error_messages:
        form = f"one of {', '.join(option['choices'])}" if "choices" in option else f"a value of type {option['type']}"
        return [f"{name}={value!r}: cannot be used; give {form}"]
    return inventory.meaning_problems(name, checked.validated_parameters[name])


def files_instead_of_folders(given: Mapping[str, Any], found: list[str]) -> list[str]:
    """Return the folders of this very machine that are files; elsewhere the box says so when it is taken."""
    told = []
    for name in ("dflash_root", "dflash_workspace"):
        if given.get(name) in (None, "", inventory.AUTO) or any(text.startswith(name) for text in found):
            continue
        try:
            disk.require_not_file(at_home(given[name]), name)
        except OpsError as error:
            told.append(str(error))
    return told
