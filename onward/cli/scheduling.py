"""`onward scheduler`: the gang scheduler, against the current kubeconfig or in a pod."""

from __future__ import annotations

from typing import Any

import click

from onward.cli.objects import access
from onward.core.turns import PATIENCE_S
from onward.errors import UsageError


@click.command("scheduler")
@click.option("--scheduler-name", "names", multiple=True, metavar="NAME", help="Serve pods that ask for this (again).")
@click.option("--kubeconfig", metavar="FILE", help="The cluster (default: KUBECONFIG, or that of the pod).")
@click.option("--patience", type=click.FloatRange(0.0), default=PATIENCE_S, show_default=True, metavar="S",
              help="A gang that has waited so long is not passed any more.")  # fmt: skip
@click.option("--lease-namespace", default="kube-system", show_default=True, metavar="NAME")
@click.option("--lease-name", default="onward-scheduler", show_default=True, metavar="NAME")
def scheduler(names: tuple[str, ...], kubeconfig: str | None, **given: Any) -> int:
    """Run the gang scheduler: pods of a PodGroup get their nodes together, or not at all.

    \b
      onward scheduler --scheduler-name volcano --scheduler-name koord-scheduler
    """
    if not names:
        raise UsageError(
            "onward scheduler: which pods are its own? Write --scheduler-name NAME, once for each value of "
            "spec.schedulerName it is to serve (for example volcano, where Volcano itself does not run)"
        )
    from onward.log import tell_all
    from onward.scheduler.serve import ServeSettings, run

    tell_all()
    settings = ServeSettings(names, given["patience"], given["lease_namespace"], given["lease_name"])
    return run(access(kubeconfig), settings)
