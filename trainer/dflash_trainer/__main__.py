"""python -m dflash_trainer VERB --config FILE [--set section.key=value]...

Exit codes: 0 finished or stopped on request, 2 configuration, 3 input, 4 worker, 5 NaN, 6 compile, 7 GPU.
"""

from __future__ import annotations

import sys

from dflash_trainer.cli import run


def main() -> None:
    """Run the verb on the command line and leave with its exit code."""
    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
