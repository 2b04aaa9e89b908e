"""Archive trainer/ at one commit and copy it to the box if the box lacks that release."""

from __future__ import annotations

import dataclasses
import tempfile
from pathlib import Path
from typing import Any

from ansible.plugins.loader import action_loader

action_loader.get("dflash_base", class_only=True)

from dflash_controller import checkout
from dflash_controller.box_action import BoxAction
from dflash_ops.core.errors import OpsError


class ActionModule(BoxAction):
    """One remote call if the release is complete; a second call installs it."""

    TRANSFERS_FILES = True

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Archive the checkout, check the box, and copy the archive if needed."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        arguments = dict(self._task.args)
        with tempfile.TemporaryDirectory(prefix="dflash-release-") as folder:
            try:
                snapshot = checkout.snapshot(
                    self.repo,
                    str(arguments.get("version") or "HEAD"),
                    Path(folder),
                    allow_dirty=bool(arguments.get("allow_dirty")),
                )
            except OpsError as error:
                return {**result, "failed": True, "msg": str(error)}
            arguments.update(dataclasses.asdict(snapshot.spec))
            report = self._execute_module(module_args=arguments, task_vars=task_vars)
            if report.get("needs_archive") and not self._task.check_mode and not report.get("failed"):
                report = self.install(snapshot.archive, arguments, task_vars)
        if report.get("state") == "complete":
            outcome = "was installed" if report.get("changed") else "is unchanged"
            self.print_line(task_vars or {}, f'release {report["release_id"]} ("{snapshot.spec.subject}") {outcome}')
        return {**result, **report}

    def install(self, archive: Path, arguments: dict[str, Any], task_vars: dict[str, Any] | None) -> dict[str, Any]:
        """Copy the archive into a temporary folder on the box and run the module with it."""
        remote = self._connection._shell.join_path(self._make_tmp_path(), archive.name)
        try:
            self._transfer_file(str(archive), remote)
            self._fixup_perms2((self._connection._shell.tmpdir, remote))
            arguments = {**arguments, "archive": remote}
            return dict(self._execute_module(module_args=arguments, task_vars=task_vars))
        finally:
            self._remove_tmp_path(self._connection._shell.tmpdir)
