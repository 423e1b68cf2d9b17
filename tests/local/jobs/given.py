"""A cluster that somebody has given us by its kubeconfig: what the tests need there, and what they take away again.

The definitions and the rights come from the files that users apply. Operator and scheduler run here, as the service
accounts of those files; with ONWARD_TEST_OPERATOR=deployed nothing is started or changed, they run there already.
Pods need ONWARD_TEST_IMAGE, an image with onward and torch; without one, tests of running pods are skipped.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml
from by_kubectl import Kubectl, Obj
from onecluster import ROOT
from waiting import until

SYSTEM = "onward-system"
CRDS = ROOT / "onward/api/crds"


@dataclass(frozen=True)
class Somewhere:
    """Where jobs can be run."""

    kubeconfig: Path
    image: str  # empty: pods cannot run
    python: str = "python"
    here: bool = False  # on this machine, whose files its pods see


@contextlib.contextmanager
def given(kubeconfig: Path, tmp: Path) -> Iterator[Somewhere]:
    here = Somewhere(kubeconfig, os.environ.get("ONWARD_TEST_IMAGE", ""))
    if os.environ.get("ONWARD_TEST_OPERATOR") == "deployed":
        yield here
        return
    admin = Kubectl(kubeconfig, tmp, SYSTEM)
    with contextlib.ExitStack() as after:
        for file in sorted(CRDS.glob("*.yaml")):
            _put(admin, list(yaml.safe_load_all(file.read_text())), after)
        admin.kubectl("wait", "--for=condition=Established", "--timeout=60s", "-f", str(CRDS))
        until(admin.has_gangs, "PodGroups are served")
        for part in ("operator", "scheduler"):
            objects = list(yaml.safe_load_all((ROOT / f"deploy/{part}.yaml").read_text()))
            _put(admin, [o for o in objects if o["kind"] != "Deployment"], after)
        after.enter_context(_running("operator", [], admin, tmp))
        if "volcano-scheduler" not in admin.kubectl("get", "deployments", "-A", "-o", "name"):
            after.enter_context(_running("scheduler", ["--scheduler-name", "volcano"], admin, tmp))
        yield here


def _put(admin: Kubectl, objects: list[Obj], after: contextlib.ExitStack) -> None:
    """What is there already stays as it is, also afterwards."""
    for obj in filter(None, objects):
        kind, name = obj["kind"].lower(), obj["metadata"]["name"]
        if admin.tried("get", kind, name).returncode != 0:
            until(lambda o=obj: _made(admin, o), f"{kind} {name} can be made", 30.0)
            after.callback(admin.tried, "delete", kind, name)


def _made(admin: Kubectl, obj: Obj) -> bool:
    """A kind that was just defined may not be served yet."""
    return admin.tried("create", "--validate=strict", "-f", "-", stdin=json.dumps(obj)).returncode == 0


@contextlib.contextmanager
def _running(part: str, flags: list[str], admin: Kubectl, tmp: Path) -> Iterator[None]:
    """With the rights of its service account, and no others."""
    config = json.loads(admin.kubectl("config", "view", "--raw", "--minify", "--flatten", "-o", "json"))
    token = admin.kubectl("create", "token", f"onward-{part}", "--duration", "2h").strip()
    config["users"] = [{"name": config["users"][0]["name"], "user": {"token": token}}]
    file, log = tmp / f"{part}.kubeconfig", tmp / f"{part}.log"
    file.touch(mode=0o600)
    file.write_text(json.dumps(config))
    words = ["-m", "onward.cli.main", part, "--kubeconfig", str(file), "--lease-namespace", SYSTEM, *flags]
    with log.open("w") as said:
        process = subprocess.Popen([sys.executable, *words], stdout=said, stderr=said, cwd=ROOT)
    try:
        until(lambda: process.poll() is not None or "leads" in log.read_text(), f"the {part} leads", 60.0)
        assert process.poll() is None, log.read_text()
        yield
        assert process.poll() is None, log.read_text()
        assert "forbidden" not in log.read_text().lower(), log.read_text()
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)
