"""Which ConfigMaps, Secrets and tokens a pod names, and getting them."""

from __future__ import annotations

from onward.kube.client import ApiError, Client
from onward.kube.objects import CONFIGMAPS, SECRETS, Obj

HOUR_S = 3600

Reference = tuple[str, str]  # kind, name
TokenRequest = tuple[str, int]  # audience, seconds
Tokens = dict[TokenRequest, str]


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


def token_request(spec: Obj) -> TokenRequest:
    return spec.get("audience") or "", int(spec.get("expirationSeconds") or HOUR_S)


def token_requests(pod: Obj) -> set[TokenRequest]:
    """The service account tokens that its volumes ask for."""
    found = set()
    for volume in pod["spec"].get("volumes") or []:
        for source in (volume.get("projected") or {}).get("sources") or []:
            if source.get("serviceAccountToken") is not None:
                found.add(token_request(source["serviceAccountToken"]))
    return found


def tokens_last_s(pod: Obj) -> float:
    """After so long they are asked for anew, as the kubelet does: when four fifths of their time are over."""
    return 0.8 * min((seconds for _, seconds in token_requests(pod)), default=float("inf"))


async def fetch_tokens(client: Client, pod: Obj) -> Tokens:
    """Those that the server gives."""
    found: Tokens = {}
    namespace, account = pod["metadata"]["namespace"], pod["spec"].get("serviceAccountName") or "default"
    for audience, seconds in token_requests(pod):
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
            continue  # nobody to be, or a server without tokens
        found[audience, seconds] = str((answer.get("status") or {}).get("token", ""))
    return found
