"""`python -m onward.local.operating --state DIR`: the operator of a cluster on this machine."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from pathlib import Path

from onward.api.crds import crds
from onward.errors import OnwardError
from onward.kube.access import load_access
from onward.kube.objects import PODGROUPS
from onward.local.shim import linux
from onward.operator.process import OperatorSettings, serve

LEASE_S = 3.0  # there is one copy; should its end not be seen, the next need not wait long


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m onward.local.operating", description=__doc__)
    parser.add_argument("--state", type=Path, required=True, help="the directory of the cluster")
    asked = parser.parse_args()
    try:
        access = load_access(asked.state.resolve() / "kubeconfig")
        served = any(crd["spec"]["names"]["kind"] == PODGROUPS.kind for crd in crds())
        settings = OperatorSettings(
            gang="on" if served else "off",
            lease_s=LEASE_S,
            one_machine=True,
            define=True,
            token_in_env=not linux.may_mount(),
        )
        asyncio.run(serve(access, settings))
    except OnwardError as e:
        print(f"onward operator[{os.getpid()}]: {e}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
