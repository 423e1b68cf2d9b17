"""The process: `main(directory)`. Started by the node agent in a session of its own, so that it outlives the agent."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import sys
from typing import Any

from onward.local.shim import linux
from onward.local.shim.desk import Desk
from onward.local.shim.loop import Loop
from onward.local.shim.pod import Pod

LOCK = "shim.lock"


def claim(place: str) -> bool:
    """A pod has one shim. The lock says that there is one, and which; it goes with the process, however that ends."""
    try:
        fd = os.open(f"{place}/{LOCK}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def main(place: str) -> None:
    if not claim(place):
        return
    try:
        with open(f"{place}/recipe.json") as f:
            recipe = json.load(f)
    except FileNotFoundError:
        return  # the pod was taken down before we had begun
    linux.prctl(linux.PR_SET_CHILD_SUBREAPER, 1)  # orphans of the pod come to us, not to the machine's first process
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    if recipe.get("netns"):
        linux.enter(recipe["netns"], linux.CLONE_NEWNET)
    if recipe.get("hostname") and linux.may_mount():
        linux.unshare(linux.CLONE_NEWUTS)
        linux.sethostname(recipe["hostname"])
    loop = Loop()
    pods: list[Pod] = []

    def order(what: dict[str, Any]) -> None:
        grace_s = what.get("grace_s", 30)
        if what.get("op") == "stop" and isinstance(grace_s, (int, float)):
            pods[0].stop(float(grace_s), str(what.get("reason") or ""), str(what.get("message") or ""))

    desk = Desk(loop, f"{place}/shim.sock", order, lambda connection, asked: pods[0].attach(connection, asked))
    pod = Pod(loop, place, recipe, desk.tell)
    pods.append(pod)

    def end() -> None:
        loop.running = False

    pod.begin(end)
    loop.run()


def command(place: str) -> list[str]:
    """How to start one: without site-packages, so that it is up in a few milliseconds and small."""
    import onward

    root = os.path.dirname(os.path.dirname(os.path.abspath(onward.__file__)))
    code = f"import sys; sys.path.insert(0, {root!r}); from onward.local.shim.main import main; main({place!r})"
    return [sys.executable, "-E", "-S", "-c", code]
