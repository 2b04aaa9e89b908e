"""tools/tutorial_output.py replaces output blocks by the output of the commands above them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PAGE = """\
```sh
cd {folder}; NAME=box
printf 'PLAY [x] ***\\n\\n  %s | one\\nok: [x]\\n' $NAME
```

```
old
```

<!-- wait 0 -->

```sh
pwd; seq 100
```

```
old
```

<!-- not run -->

```sh
false; true
```
"""


def renew(repo: Path, page: Path) -> int:
    command = [sys.executable, str(repo / "tools/tutorial_output.py"), str(page)]
    return subprocess.run(command, capture_output=True, check=False).returncode


def test_output_is_replaced_without_headings_and_shortened(repo: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(PAGE.format(folder=tmp_path))
    assert renew(repo, page) == 0
    first, second = "  box | one", "\n".join([str(tmp_path), *"12345", "  ...", *map(str, range(85, 101))])
    before, middle, after = PAGE.format(folder=tmp_path).split("old")
    assert page.read_text() == before + first + middle + second + after


def test_failed_command_leaves_the_page_unchanged(repo: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    text = PAGE.format(folder=tmp_path).replace("<!-- not run -->\n\n", "")
    page.write_text(text)
    assert renew(repo, page) == 1
    assert page.read_text() == text
