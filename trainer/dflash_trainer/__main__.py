"""python -m dflash_trainer COMMAND --config FILE [--set section.key=value]...

Exit codes: 0 finished or stopped on request, 2 configuration, 3 input, 4 worker, 5 NaN, 6 compile, 7 GPU.
"""

from __future__ import annotations

import os
import sys
import threading

from dflash_trainer.cli import run
from dflash_trainer.training.stop_signals import stop_was_requested


def main() -> None:
    """Run the command and exit with its code, even when a worker is stuck on a lost GPU.

    The forced exit is only done here: callers of `cli.run` continue afterwards.
    """
    code = run(sys.argv[1:])
    others = [thread for thread in threading.enumerate() if thread is not threading.main_thread()]
    if stop_was_requested() or not all(thread.daemon for thread in others):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


if __name__ == "__main__":
    main()
