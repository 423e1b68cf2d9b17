"""Running the command as people do: a process of its own, with a limit on its time."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
COMMAND = [sys.executable, "-m", "onward.cli.main"]


def environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PET_", "ONWARD_"))}
    return {**kept, "PYTHONPATH": str(ROOT)}


def onward(*words: str, cwd: Path | None = None, timeout_s: float = 120.0) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *words], cwd=cwd, env=environment(), capture_output=True, text=True, timeout=timeout_s, check=False
    )


def start(*words: str, cwd: Path, **variables: str) -> subprocess.Popen[str]:
    out = (cwd / "out.txt").open("w")
    err = (cwd / "err.txt").open("w")
    with out, err:
        env = {**environment(), **variables}
        return subprocess.Popen([*COMMAND, *words], cwd=cwd, env=env, stdout=out, stderr=err, text=True)
