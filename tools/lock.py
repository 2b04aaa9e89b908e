"""Resolve the hash-pinned lockfiles with uv and print the changes.

    make lock                                  keep every pin that is still valid
    make lock ARGS='cu128'                     one lockfile
    make lock ARGS='cpu --upgrade-package datasets'     upgrade one package
    make lock ARGS='--upgrade'                 upgrade everything
    make lock ARGS='cu128 --add-wheel causal_conv1d-1.6.1-cp312-cp312-linux_x86_64.whl'     record a locally built wheel

torch has a separate index with builds of several gigabytes. Only its file hashes and requirements are needed here.
trainer/locks/torch.json records them; they are compared with the index if it is reachable.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
import urllib.error
import urllib.parse
import urllib.request
import zipfile
from pathlib import Path
from typing import Any

REPO = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPO / "plugins/module_utils"))

from dflash_ops.core import files  # noqa: E402
from dflash_ops.environment import lockfile  # noqa: E402

LOCKS = REPO / "trainer/locks"
BUILT = LOCKS / "built.json"
PLATFORM = "x86_64-manylinux_2_28"
PROFILES = ("cpu", "cu128")
PLAIN = {
    "controller": REPO / "requirements/controller",
    "trainer-tests": REPO / "requirements/trainer-tests",
    "uv": LOCKS / "uv",
}


def compile_lock(source: Path, target: Path, *options: str) -> str:
    """Resolve `source` for all its Python versions, keep valid pins of `target`, return the lockfile's text."""
    uv = shutil.which("uv", path=str(Path(sys.executable).parent)) or "uv"
    with tempfile.TemporaryDirectory() as folder:
        fresh = Path(folder) / target.name
        if target.exists():
            shutil.copy(target, fresh)
        command = [
            uv,
            "pip",
            "compile",
            str(source.relative_to(REPO)),
            "--universal",
            "--generate-hashes",
            "--no-header",
            "--no-emit-index-url",
            "--only-binary",
            ":all:",
            "--quiet",
            "--output-file",
            str(fresh),
            *options,
        ]
        subprocess.run(command, check=True, cwd=REPO)
        return fresh.read_text()


def stub_wheels(torch: dict[str, Any], folder: Path) -> None:
    """Write wheels with METADATA only under torch's real file names, for the resolver."""
    version, info = torch["version"], f"torch-{torch['version']}.dist-info"
    metadata = "".join(f"Requires-Dist: {name}\n" for name in torch["requires"])
    for tag in torch["hashes"]:
        with zipfile.ZipFile(folder / f"torch-{version}-{tag}-{tag}-manylinux_2_28_x86_64.whl", "w") as wheel:
            wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n{metadata}\n")
            wheel.writestr(
                f"{info}/WHEEL", f"Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: {tag}-{tag}-linux_x86_64\n"
            )
            wheel.writestr(f"{info}/RECORD", "")


def index_hashes(torch: dict[str, Any]) -> dict[str, str] | None:
    """Return the index's SHA-256 by wheel tag, or None if the index is not reachable."""
    try:
        with urllib.request.urlopen(f"{torch['index']}/torch/", timeout=10) as answer:
            page = urllib.parse.unquote(answer.read().decode())
    except (urllib.error.URLError, TimeoutError):
        return None
    name = rf"torch-{re.escape(torch['version'])}-(cp\d+)-\1-manylinux_2_28_x86_64\.whl#sha256=([0-9a-f]{{64}})"
    return dict(re.findall(name, page))


def check_recorded(profile: str, torch: dict[str, Any]) -> None:
    """Compare the recorded hashes with the index and print the result."""
    listed = index_hashes(torch)
    if listed is None:
        print(f"{profile}: torch's index is not reachable; using the recorded hashes")
        return
    wrong = {tag: hash_ for tag, hash_ in torch["hashes"].items() if listed.get(tag) != hash_}
    if wrong:
        sys.exit(f"{profile}: trainer/locks/torch.json and {torch['index']} differ for {', '.join(wrong)}: {listed}")
    print(f"{profile}: torch's recorded hashes match its index")


def make_profile(profile: str, options: list[str]) -> str:
    """Return the text of a trainer lockfile."""
    torch = json.loads((LOCKS / "torch.json").read_text())[profile]
    check_recorded(profile, torch)
    with tempfile.TemporaryDirectory() as folder:
        stub_wheels(torch, Path(folder))
        text = compile_lock(
            LOCKS / f"{profile}.in",
            LOCKS / f"{profile}.lock",
            "--python-version",
            torch["python"][0],
            "--find-links",
            folder,
            "--overrides",
            "trainer/locks/overrides.txt",
            *options,
        )
    hashes = " \\\n".join(f"    --hash=sha256:{hash_}" for hash_ in sorted(torch["hashes"].values()))
    pin = f"torch=={torch['version']} \\\n"
    text, count = re.subn(
        rf"^{re.escape(pin)}(?:    --hash=\S+(?: \\)?\n)+",
        pin + hashes.replace("\\", r"\\") + "\n",
        text,
        flags=re.MULTILINE,
    )
    if count != 1:
        sys.exit(f"{profile}: torch=={torch['version']} is not in the resolution; change {profile}.in or torch.json")
    head = [
        f"# Made by `make lock` from {profile}.in; change that file, not this one.",
        f"# profile: {profile}",
        f"# python: {' '.join(torch['python'])}",
        f"# platform: {PLATFORM}",
        f"# index torch: {torch['index']}",
    ]
    head += [f"# {key}: {torch[key]}" for key in ("cuda", "data", "megabytes") if torch[key]]
    built = json.loads(BUILT.read_text())[profile]
    head += [f"# built: {' '.join(sorted({row['name'] for row in built}))}"] if built else []
    text = "\n".join(head) + "\n" + text + built_pins(built)
    lockfile.require_complete(text, name=f"{profile}.lock")
    return text


def add_wheel(profile: str, wheel: Path) -> None:
    """Record name, version, Python version and hash of a locally built wheel."""
    name, version, python, *_ = wheel.name.split("-")
    row = {
        "name": lockfile.normalized(name),
        "version": version,
        "python": f"{python[2]}.{python[3:]}",
        "sha256": files.file_sha256(wheel),
    }
    built = json.loads(BUILT.read_text())
    rows = [other for other in built[profile] if (other["name"], other["python"]) != (row["name"], row["python"])]
    built[profile] = sorted([*rows, row], key=lambda entry: (entry["name"], entry["python"]))
    BUILT.write_text(json.dumps(built, indent=2) + "\n")


def built_pins(rows: list[dict[str, str]]) -> str:
    """Return the lockfile's lines for locally built wheels."""
    return "".join(
        f"{row['name']}=={row['version']} ; python_version == '{row['python']}' \\\n"
        f"    --hash=sha256:{row['sha256']}\n    # built by hand\n"
        for row in rows
    )


def changes(old: str, new: str) -> list[str]:
    """Return one line for each package that was added, removed, upgraded or has different files."""
    before, after = ({(pin.name, pin.marker): pin for pin in lockfile.parse(text).pins} for text in (old, new))
    lines = []
    for key in sorted(before.keys() | after.keys()):
        was, now = before.get(key), after.get(key)
        name = f"{key[0]} ({key[1]})" if key[1] else key[0]
        if was is None and now is not None:
            lines.append(f"  + {name} {now.version}")
        elif now is None and was is not None:
            lines.append(f"  - {name} {was.version}")
        elif was is not None and now is not None and was.version != now.version:
            lines.append(f"    {name} {was.version} -> {now.version}")
        elif was is not None and now is not None and was.hashes != now.hashes:
            lines.append(f"    {name} {now.version}: different files ({len(was.hashes)} -> {len(now.hashes)} hashes)")
    return lines


def write(target: Path, text: str) -> None:
    """Replace a lockfile if it changed and print the changes."""
    old = target.read_text() if target.exists() else ""
    lines = changes(old, text)
    print(f"{target.relative_to(REPO)}: " + (f"{len(lines)} changed" if text != old else "unchanged"))
    print("\n".join(lines), end="\n" if lines else "")
    if text != old:
        target.write_text(text)


def main() -> None:
    """Resolve the named lockfiles, or all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help=f"of {', '.join([*PLAIN, *PROFILES])}; default: all")
    parser.add_argument("--add-wheel", type=Path, help="record a locally built wheel in the named lockfile")
    arguments, options = parser.parse_known_args()
    unknown = [name for name in arguments.names if name not in (*PLAIN, *PROFILES)]
    if unknown:
        parser.error(f"no such lockfile: {', '.join(unknown)}")
    if arguments.add_wheel:
        if len(arguments.names) != 1 or arguments.names[0] not in PROFILES or not arguments.add_wheel.is_file():
            parser.error("--add-wheel needs an existing file and exactly one profile")
        add_wheel(arguments.names[0], arguments.add_wheel)
    for name in arguments.names or [*PLAIN, *PROFILES]:
        if name in PROFILES:
            write(LOCKS / f"{name}.lock", make_profile(name, options))
        else:
            source = PLAIN[name]
            text = compile_lock(
                source.with_suffix(".in"), source.with_suffix(".lock"), "--python-version", "3.11", *options
            )
            write(source.with_suffix(".lock"), text)


if __name__ == "__main__":
    main()
