"""Which ConfigMaps, Secrets and tokens a pod names, and getting them."""

from __future__ import annotations

from onward.kube.client import ApiError, Client
from onward.kube.objects import CONFIGMAPS, SECRETS, Obj

Reference = tuple[str, str]  # kind, name


def needed(pod: Obj) -> set[Reference]:
    spec = pod["spec"]
    found: set[Reference] = set()
    for container in [*(spec.get("initContainers") or []), *spec["containers"]]:
        for source in container.get("envFrom") or []:
            _add(found, "ConfigMap", source.get("configMapRef"))
            _add(found, "Secret", source.get("secretRef"))
        for entry in container.get("env") or []:
            source = entry.get("valueFrom") or {}
            _add(found, "ConfigMap", source.get("configMapKeyRef"))
            _add(found, "Secret", source.get("secretKeyRef"))
    for volume in spec.get("volumes") or []:
        _add(found, "ConfigMap", volume.get("configMap"))
        _add(found, "Secret", volume.get("secret"), "secretName")
        for source in (volume.get("projected") or {}).get("sources") or []:
            _add(found, "ConfigMap", source.get("configMap"))
            _add(found, "Secret", source.get("secret"))
    return found


def _add(found: set[Reference], kind: str, ref: Obj | None, key: str = "name") -> None:
    if ref and ref.get(key):
        found.add((kind, ref[key]))


async def fetch_objects(client: Client, pod: Obj) -> dict[Reference, Obj]:
    """Those that exist. An informer may be a moment behind, so the API is asked directly."""
    namespace, found = pod["metadata"]["namespace"], {}
    for kind, name in sorted(needed(pod)):
        try:
            obj = await client.get(CONFIGMAPS if kind == "ConfigMap" else SECRETS, name, namespace)
        except ApiError as e:
            if e.code != 404:
                raise
            continue
        obj["kind"] = kind
        found[(kind, name)] = obj
    return found


async def fetch_tokens(client: Client, pod: Obj) -> dict[str, str]:
    """Service account tokens that projected volumes ask for, by audience."""
    found: dict[str, str] = {}
    namespace, account = pod["metadata"]["namespace"], pod["spec"].get("serviceAccountName") or "default"
    for volume in pod["spec"].get("volumes") or []:
        for source in (volume.get("projected") or {}).get("sources") or []:
            spec = source.get("serviceAccountToken")
            if spec is None:
                continue
            audience = spec.get("audience") or ""
            seconds = spec.get("expirationSeconds") or 3600
            body = {
                "apiVersion": "authentication.k8s.io/v1",
                "kind": "TokenRequest",
                "spec": {"audiences": [audience] if audience else [], "expirationSeconds": seconds},
            }
            path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
            try:
                answer = await client.request("POST", path, body)
            except ApiError as e:
                if e.code not in (404, 405, 501):
                    raise
                found[audience] = ""  # there are no tokens on this server
            else:
                found[audience] = str((answer.get("status") or {}).get("token", ""))
    return found
