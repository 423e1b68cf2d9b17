"""Become a command in a running container: `enter DIRECTORY CONTAINER PID tty COMMAND...`, for exec. Without a terminal
the fourth word is empty.
"""

from __future__ import annotations

import json
import signal
import sys

from onward.local.shim import cgroups, linux, spawn


def main() -> None:
    place, name, pid, tty, *command = sys.argv[1:]
    with open(f"{place}/recipe.json") as f:
        recipe = json.load(f)
    spec = next(c for c in recipe["containers"] if c["name"] == name)
    if tty:
        spec["env"].setdefault("TERM", "xterm")
    linux.prctl(linux.PR_SET_PDEATHSIG, signal.SIGKILL)  # it ends with the agent that asked for it
    group = cgroups.from_words(recipe.get("cgroup"), int(recipe.get("cgroup_version") or 0)).child(name)
    group.enter()
    if linux.may_mount():
        for kind, flag in (("net", linux.CLONE_NEWNET), ("uts", linux.CLONE_NEWUTS), ("mnt", linux.CLONE_NEWNS)):
            linux.enter(f"/proc/{pid}/ns/{kind}", flag)
    try:
        spawn.become(spec, command)
    except spawn.CommandNotFound as e:
        sys.stderr.write(f"{e}\n")
        sys.exit(127)
    except OSError as e:
        sys.stderr.write(f'exec: "{command[0]}": {e.strerror or e}\n')
        sys.exit(126)
