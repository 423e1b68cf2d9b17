"""The token that a pod gets to talk to the API, unless it does not want one.

On a real cluster the API server adds the volume when the pod is created; here the node adds it when the pod starts. A
pod with `automountServiceAccountToken: false`, or whose service account says so, gets none.
"""

from __future__ import annotations

from onward.kube.client import ApiError, Client
from onward.kube.objects import Obj, Resource

ACCOUNTS = Resource("", "v1", "serviceaccounts", "ServiceAccount")
PLACE = "/var/run/secrets/kubernetes.io/serviceaccount"
VOLUME = "kube-api-access"
SECONDS = 365 * 24 * 3600  # nobody renews it: it lasts longer than a pod on one machine


async def with_token(client: Client, pod: Obj) -> Obj:
    """The pod, with the volume and its mounts if it should have them."""
    spec = pod["spec"]
    wanted = spec.get("automountServiceAccountToken")
    mounted = [m["mountPath"] for c in _containers(spec) for m in c.get("volumeMounts") or []]
    if wanted is False or any(path.rstrip("/") == PLACE for path in mounted):
        return pod
    try:
        name = spec.get("serviceAccountName") or "default"
        account = await client.get(ACCOUNTS, name, pod["metadata"]["namespace"])
    except ApiError as e:
        if e.code != 404:
            raise
        return pod  # nobody to be
    if wanted is None and account.get("automountServiceAccountToken") is False:
        return pod
    return {**pod, "spec": _added(spec)}


def _containers(spec: Obj) -> list[Obj]:
    return [*(spec.get("initContainers") or []), *spec["containers"]]


def _added(spec: Obj) -> Obj:
    sources = [
        {"serviceAccountToken": {"path": "token", "expirationSeconds": SECONDS}},
        {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
        {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": {"fieldPath": "metadata.namespace"}}]}},
    ]
    volume = {"name": VOLUME, "projected": {"sources": sources}}
    mount = {"name": VOLUME, "mountPath": PLACE, "readOnly": True}
    changed = {**spec, "volumes": [*(spec.get("volumes") or []), volume]}
    for part in ("initContainers", "containers"):
        if spec.get(part):
            changed[part] = [{**c, "volumeMounts": [*(c.get("volumeMounts") or []), mount]} for c in spec[part]]
    return changed
