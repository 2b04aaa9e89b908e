"""Screens: each function turns the answer of a module into the lines that an operator reads."""

from dflash_controller.screens.compare import compare_screen
from dflash_controller.screens.health import health_panel
from dflash_controller.screens.logs import logs_screen
from dflash_controller.screens.prune import prune_screen
from dflash_controller.screens.report import report_markdown
from dflash_controller.screens.runs import runs_screen
from dflash_controller.screens.status import status_screen
from dflash_controller.screens.verify import verify_screen

__all__ = [
    "compare_screen",
    "health_panel",
    "logs_screen",
    "prune_screen",
    "report_markdown",
    "runs_screen",
    "status_screen",
    "verify_screen",
]
