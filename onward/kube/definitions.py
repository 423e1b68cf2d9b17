"""Custom resource definitions: put there when they are missing, renewed when they are ours."""

from __future__ import annotations

from collections.abc import Iterable

from onward.kube.client import ApiError, Client
from onward.kube.objects import Obj, Resource, name_of
from onward.log import get_logger

log = get_logger("kube.definitions")

CRDS = Resource("apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", namespaced=False)
OURS = ("app.kubernetes.io/managed-by", "onward")


async def install(client: Client, wanted: Iterable[Obj]) -> None:
    """Somebody else's definition of the same name is left as it is."""
    for crd in wanted:
        try:
            await _install(client, crd)
        except ApiError as e:
            if e.code != 409:
                raise
            # Another one was faster: the same definition, or the next look tells.


async def _install(client: Client, crd: Obj) -> None:
    try:
        there = await client.get(CRDS, name_of(crd))
    except ApiError as e:
        if e.code != 404:
            raise
        await client.create(CRDS, crd)
        log.info("defined %s", name_of(crd))
        return
    label, value = OURS
    if (there["metadata"].get("labels") or {}).get(label) != value or _covers(there["spec"], crd["spec"]):
        return
    there["spec"] = crd["spec"]
    await client.update(CRDS, there)
    log.info("renewed %s", name_of(crd))


def _covers(there: object, wanted: object) -> bool:
    """The server adds defaults: what we say must be there, more may be."""
    if isinstance(wanted, dict):
        return isinstance(there, dict) and all(key in there and _covers(there[key], wanted[key]) for key in wanted)
    if isinstance(wanted, list):
        return isinstance(there, list) and len(there) == len(wanted) and all(map(_covers, there, wanted))
    return there == wanted
