"""Subresources other than status: binding, eviction, scale, finalize, token; `kubelet.py` has what nodes answer."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from aiohttp import web

from onward.core import disruption
from onward.local.api import accounts, kubelet, patches, selectors
from onward.local.api.clock import now_text
from onward.local.api.decoding import conform
from onward.local.api.deletion import delete
from onward.local.api.registry import Resource
from onward.local.api.request import Target, WriteOptions, delete_options, write_options
from onward.local.api.rest import Api
from onward.local.api.schema import builtin_types
from onward.local.api.status import (
    ApiError,
    bad_request,
    conflict,
    internal,
    invalid,
    method_not_allowed,
    not_supported,
    required,
    success,
    unsupported,
    wrong,
)
from onward.local.api.store import Item, clone

if TYPE_CHECKING:
    from onward.local.api.server import Server

Json = dict[str, Any]
BINDING = builtin_types().kind("core.Binding")
EVICTION = builtin_types().kind("policy.Eviction")
SCALE = builtin_types().kind("autoscaling.Scale")
REASONS = {
    "ephemeralcontainers": "ephemeral containers need a container runtime; use `kubectl exec` into a running container",
    "resize": "resources of a running pod cannot be changed here; create the pod anew",
    "proxy": "the API server does not proxy HTTP to pods, services and nodes; connect to their address directly",
}


async def handle(server: Server, request: web.Request, target: Target) -> web.StreamResponse:
    """Answers a request on a subresource, with the methods it has."""
    sub, method = target.subresource, request.method
    if sub in REASONS:
        raise not_supported(f"{target.resource.plural}/{sub} is not supported: {REASONS[sub]}")
    if sub == "log" and method == "GET":
        return await kubelet.log(server.api, request, target)
    if sub in ("exec", "attach", "portforward"):
        return await kubelet.connect(server.api, request, target)
    kind = {"POST": "CreateOptions", "PUT": "UpdateOptions"}.get(method, "PatchOptions")
    options = write_options(request.query, request.headers.get("User-Agent", ""), kind)
    if sub == "scale" and method in ("GET", "PUT", "PATCH"):
        return await _scale(server, request, target, options)
    if sub == "binding" and method == "POST":
        return await bind(server, await server.body(request, BINDING), target, options)
    if sub == "eviction" and method == "POST":
        return await _evict(server, request, target)
    if sub == "token" and method == "POST":
        return await accounts.issue(server, request, target)
    if sub == "finalize" and method == "PUT":
        decoded = server.api.decode(target.resource, await server.body(request, target.resource.schema), options)
        item = await server.api.change(target, lambda current: decoded, options)
        return server.show(target, item, "", request.query)
    raise method_not_allowed()


# -- binding -----------------------------------------------------------------------------------------------------


async def bind(server: Server, body: Any, target: Target, options: WriteOptions) -> web.Response:
    """What a scheduler does: gives a pod its node, once."""
    from onward.local.api.server import reply

    if not isinstance(body, dict) or not isinstance(body.get("target"), dict):
        raise invalid("", "Binding", target.name, [required("target.name")])
    node, kind = body["target"].get("name"), body["target"].get("kind", "Node")
    if kind not in ("", "Node"):
        raise internal(unsupported("target.kind", kind, ("Node", "<empty>")).text())
    if not isinstance(node, str) or not node:
        raise internal(required("target.name").text())
    notes = (body.get("metadata") or {}).get("annotations") or {}

    def compute(current: Item) -> Json:
        new = clone(current.body)
        name, spec = new["metadata"]["name"], new["spec"]
        if new["metadata"].get("deletionTimestamp"):
            why = f"pod {name} is being deleted, cannot be assigned to a host"
            raise conflict("", "pods/binding", name, why)
        if spec.get("nodeName"):
            why = f'pod {name} is already assigned to node "{spec["nodeName"]}"'
            raise conflict("", "pods/binding", name, why)
        if spec.get("schedulingGates"):
            raise conflict("", "pods/binding", name, f"pod {name} has non-empty .spec.schedulingGates")
        spec["nodeName"] = node
        if notes:
            new["metadata"].setdefault("annotations", {}).update(notes)
        conditions = [c for c in new["status"].get("conditions") or () if c["type"] != "PodScheduled"]
        conditions.append({"type": "PodScheduled", "status": "True", "lastTransitionTime": now_text()})
        new["status"]["conditions"] = conditions
        return new

    await server.api.change(target, compute, options, operation="binding")
    return reply(success(code=201), 201)


# -- eviction ----------------------------------------------------------------------------------------------------


async def _evict(server: Server, request: web.Request, target: Target) -> web.Response:
    from onward.local.api.server import reply

    body = await server.body(request, EVICTION)
    if not isinstance(body, dict):
        raise bad_request("the body of an eviction must be an Eviction object")
    found = server.api.get(target)
    if (body.get("metadata") or {}).get("name", target.name) != target.name:
        raise bad_request("name in URL does not match name in Eviction object")
    options = delete_options(request.query, body.get("deleteOptions"))
    if request.query.get("dryRun"):
        options = replace(options, dry_run=True)
    phase = (found.body.get("status") or {}).get("phase")
    if phase not in ("Succeeded", "Failed", "Pending") and not found.body["metadata"].get("deletionTimestamp"):
        _check_budgets(server.api, found)
    if not options.dry_run:
        await server.api.change(target, _disrupted, WriteOptions(), operation="eviction")
    await delete(server.api, target, options)
    return reply(success(code=201), 201)


def _disrupted(current: Item) -> Json:
    """The pod with the condition that says why it goes."""
    new = clone(current.body)
    kept = [each for each in new["status"].get("conditions") or () if each["type"] != "DisruptionTarget"]
    reason, message = "EvictionByEvictionAPI", "Eviction API: evicting"
    mine = {"type": "DisruptionTarget", "status": "True", "reason": reason, "message": message}
    new["status"]["conditions"] = [*kept, {**mine, "lastTransitionTime": now_text()}]
    return new


def _check_budgets(api: Api, found: Item) -> None:
    """What they allow is counted at the moment of asking: their status may be a moment old."""
    namespace, labels = found.body["metadata"]["namespace"], found.body["metadata"].get("labels") or {}
    for (where, name), budget in api.store.all("poddisruptionbudgets.policy"):
        spec = budget.body.get("spec") or {}
        if where != namespace or not selectors.selects(spec.get("selector"), labels):
            continue
        pods = [
            item.body
            for (ns, _), item in api.store.all("pods")
            if ns == namespace and selectors.selects(spec.get("selector"), item.body["metadata"].get("labels") or {})
        ]
        healthy, needed = sum(map(disruption.healthy, pods)), disruption.needed(spec, len(pods))
        if healthy - 1 < needed and disruption.ready(found.body):
            why = f"The disruption budget {name} needs {needed} healthy pods and has {healthy} currently"
            raise ApiError(
                429,
                "TooManyRequests",
                "Cannot evict pod as it would violate the pod's disruption budget.",
                {"causes": [{"reason": "DisruptionBudget", "message": why}]},
            )


# -- scale -------------------------------------------------------------------------------------------------------


def _walk(body: Json, path: str) -> Any:
    found: Any = body
    for step in path.strip(".").split("."):
        found = found.get(step) if isinstance(found, dict) else None
    return found


def scale_of(resource: Resource, body: Json) -> Json:
    """The Scale that shows this object."""
    paths = resource.scale_paths
    meta = body["metadata"]
    kept = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
    spec_path, status_path = paths.get("specReplicasPath", "spec.replicas"), paths.get("statusReplicasPath", "")
    status: Json = {"replicas": _walk(body, status_path or "status.replicas") or 0}
    if resource.custom:
        selector = _walk(body, paths["labelSelectorPath"]) if paths.get("labelSelectorPath") else ""
    else:
        raw = (body.get("spec") or {}).get("selector") or {}
        selector = selectors.written(raw if "replicationcontrollers" not in resource.plural else {"matchLabels": raw})
    if selector:
        status["selector"] = selector
    replicas = _walk(body, spec_path)
    return {
        "kind": "Scale", "apiVersion": "autoscaling/v1", "metadata": {key: meta[key] for key in kept if key in meta},
        "spec": {"replicas": replicas} if replicas else {}, "status": status,
    }  # fmt: skip


async def _scale(server: Server, request: web.Request, target: Target, options: WriteOptions) -> web.Response:
    from onward.local.api.server import reply, warning_headers

    resource = target.resource
    whole = Target(resource, target.namespace, target.name, "")
    if request.method == "GET":
        return reply(scale_of(resource, server.api.get(whole).body))
    content, raw = request.headers.get("Content-Type", ""), await request.read()
    given = await server.body(request, SCALE) if request.method == "PUT" else None
    patch = patches.read(content, raw) if given is None else None

    def compute(current: Item) -> Json:
        now = scale_of(resource, current.body)
        wanted = given if patch is None else patches.apply_to(SCALE, now, *patch)
        if not isinstance(wanted, dict) or not isinstance(wanted.get("spec", {}), dict):
            raise bad_request("the body must be a Scale object")
        wanted, _ = conform(SCALE, wanted)
        version = (wanted.get("metadata") or {}).get("resourceVersion")
        if version and version != current.body["metadata"]["resourceVersion"]:
            raise conflict(resource.group, resource.plural, target.name)
        replicas = (wanted.get("spec") or {}).get("replicas", 0)
        if replicas < 0:
            cause = wrong("spec.replicas", replicas, "must be greater than or equal to 0")
            raise invalid("autoscaling", "Scale", target.name, [cause])
        new = clone(current.body)
        *parents, last = resource.scale_paths.get("specReplicasPath", "spec.replicas").strip(".").split(".")
        place = new
        for step in parents:
            place = place.setdefault(step, {})
        place[last] = replicas
        return new

    item = await server.api.change(target, compute, options)
    return reply(scale_of(resource, item.body), 200, warning_headers(options.warnings))
