"""Validate the operator's variables on the controller; one message names every problem."""

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

from dflash_controller import command_line, inventory_validation
from dflash_controller.action_base import DflashAction
from dflash_controller.vmid import resolve_vmid
from dflash_ops.core import disk, durations
from dflash_ops.core.errors import OpsError
from dflash_ops.core.paths import at_home

REPO: Path = DflashAction.repo
ROLES = sorted(path.name for path in (REPO / "roles").iterdir() if (path / "meta/argument_specs.yml").is_file())
PREFIXES = ("dflash_", "prune_", *(f"{role}_" for role in ROLES))
OUR_FACTS = ("dflash_env", "dflash_release", "dflash_lock_token")


class ActionModule(DflashAction):  # type: ignore[misc]
    """The arguments are variables and their values."""

    _requires_connection = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Fail with every problem, those of the training configuration included."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        variables = task_vars or {}
        transport = self._connection.transport
        given = {name: value for name, value in self._task.args.items() if value is not None}
        problems = inventory_validation.transport_problems(transport) + inventory_validation.problems(given, REPO)
        if not [text for text in problems if text.startswith(("dflash_config", "dflash_overrides"))]:
            try:
                inventory_validation.require_config(given["dflash_config"], given["dflash_overrides"], REPO)
            except OpsError as error:
                problems.append(str(error))
        problems += self.role_variable_problems(variables)
        problems += self.command_line_problems(variables)
        if transport == "pct":
            problems += self.vmid_problems(variables)
        if transport == "local":
            problems += folder_problems(given, problems)
        if problems:
            numbered = (f"({number}) {text}" for number, text in enumerate(problems, start=1))
            message = "\n".join(["Nothing was changed.", *numbered])
            return {**result, "failed": True, "problems": problems, "msg": message}
        return {**result, "changed": False}

    def role_variable_problems(self, task_vars: Mapping[str, Any]) -> list[str]:
        """Validate the roles' variables now; Ansible would validate each role's only when it reaches the role."""
        problems = []
        for name, option in role_options(REPO).items():
            if name not in task_vars or name in self._task.args or option.get("no_log"):
                continue
            try:
                value = self._templar.template(task_vars[name])
            except AnsibleError:  # it refers to a fact that is set later, or to a vault without its password
                continue
            problems += option_problems(name, value, option)
        return problems

    def vmid_problems(self, task_vars: Mapping[str, Any]) -> list[str]:
        """Return the problem of a Proxmox host for which provision.yml would configure another container."""
        boxes = self.boxes_behind(task_vars)
        login = next((box.login for box in boxes if box.name == task_vars["inventory_hostname"]), None)
        hosts = [host for host in self.proxmox_hosts(task_vars) if host.login == login and host.vmid]
        raised_errors = inventory_validation.raised_errors
        return [text for host in hosts for text in raised_errors(lambda host: resolve_vmid(host, boxes), host)]

    def command_line_problems(self, task_vars: Mapping[str, Any]) -> list[str]:
        """Validate -e and --tags, and the names of all variables that look like ours."""
        given = [name for name in command_line.VARIABLES if name in task_vars]
        extra = load_extra_vars(self._loader)
        playbooks = command_line.playbook_names(context.CLIARGS.get("args") or (), REPO)
        problems = [self.value_problem(name, task_vars[name]) for name in given]
        problems += command_line.unread(extra, playbooks)
        problems += command_line.unknown(extra, task_vars, known_names(REPO), PREFIXES)
        problems += command_line.tag_problems(context.CLIARGS.get("tags") or (), playbooks, role_tags(REPO))
        return [text for text in problems if text]

    def value_problem(self, name: str, given: Any) -> str:
        """Validate the value of one of the playbooks' variables."""
        try:
            value = self._templar.template(given)
        except AnsibleError:
            return ""
        return command_line.value_problem(name, value, parsed(name, value))


def parsed(name: str, value: Any) -> Any:
    """Return a variable's value converted to its type; None when that is not possible."""
    kind = command_line.VARIABLES[name].type
    if kind == command_line.DURATION:
        return durations.parse(value) if durations.is_duration(value) else None
    checked = ArgumentSpecValidator({name: {"type": kind}}).validate({name: value})
    return None if checked.error_messages else checked.validated_parameters[name]


def known_names(repo: Path) -> set[str]:
    """Return the names of all variables that are read or set here."""
    general = yaml_names(repo / "group_vars/all/dflash.yml")
    return {*role_specs(repo, ROLES), *general, *command_line.VARIABLES, *OUR_FACTS}


def yaml_names(file: Path) -> list[str]:
    """Return the top-level keys of a YAML file."""
    return list(yaml.safe_load(file.read_text(encoding="utf-8")))


def role_tags(repo: Path) -> set[str]:
    """Return the tags that the roles define."""
    tasks = [task for file in repo.glob("roles/*/tasks/main.yml") for task in yaml.safe_load(file.read_text("utf-8"))]
    return {tag for task in tasks for tag in task.get("tags") or ()}


def role_options(repo: Path) -> dict[str, dict[str, Any]]:
    """Return the variables of the roles that run on a box, with their specifications."""
    return role_specs(repo, [role for role in ROLES if role != "gpu_container"])


def role_specs(repo: Path, roles: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Return the variables of these roles, with their specifications."""
    options: dict[str, dict[str, Any]] = {}
    for role in roles:
        file = repo / "roles" / role / "meta/argument_specs.yml"
        specs = yaml.safe_load(file.read_text(encoding="utf-8"))["argument_specs"]
        options.update(specs["main"].get("options") or {})
    return options


def option_problems(name: str, value: Any, option: Mapping[str, Any]) -> list[str]:
    """Return the problems of a value: first its type, as the role's own validation does, then its range."""
    spec = {key: option[key] for key in ("type", "choices", "elements") if key in option}
    checked = ArgumentSpecValidator({name: spec}).validate({name: value})
    if checked.error_messages:
        form = f"one of {', '.join(option['choices'])}" if "choices" in option else f"a value of type {option['type']}"
        return [f"{name}={value!r}: cannot be used; give {form}"]
    return inventory_validation.range_problems(name, checked.validated_parameters[name])


def folder_problems(given: Mapping[str, Any], earlier: list[str]) -> list[str]:
    """Return the folders of this machine that are files; another box reports that when its lock is acquired."""
    problems = []
    for name in ("dflash_root", "dflash_workspace"):
        if given.get(name) in (None, "", inventory_validation.AUTO):
            continue
        if any(text.startswith(name) for text in earlier):
            continue
        try:
            disk.require_not_file(at_home(given[name]), name)
        except OpsError as error:
            problems.append(str(error))
    return problems
