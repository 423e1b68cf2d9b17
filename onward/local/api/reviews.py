"""Resources that are questions: may I, who am I, whose token is this. Nothing of them is stored."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aiohttp import web

from onward.local.api import accounts, subresources
from onward.local.api.clock import now_text
from onward.local.api.decoding import TypeMismatch, conform, handled_as
from onward.local.api.registry import Resource
from onward.local.api.request import Target, WriteOptions
from onward.local.api.status import bad_request, invalid, wrong

if TYPE_CHECKING:
    from onward.local.api.server import Server

Json = dict[str, Any]
ONE_USER = "everyone who holds a token of this one-machine cluster may do everything"


async def answer(server: Server, request: web.Request, target: Target, options: WriteOptions) -> web.Response | None:
    """The answer to a create of a question; None for real objects."""
    from onward.local.api.server import reply

    resource = target.resource
    if resource.plural == "bindings" and not resource.group:
        body = await server.body(request, resource.schema)
        name = (body.get("metadata") or {}).get("name") if isinstance(body, dict) else None
        pods = server.api.registry.find("", "v1", "pods")
        if not name or pods is None:
            raise bad_request("a Binding names its pod in metadata.name")
        return await subresources.bind(server, body, Target(pods, target.namespace, name, "binding"), options)
    if resource.group not in ("authentication.k8s.io", "authorization.k8s.io"):
        return None
    given = await server.body(request, resource.schema)
    try:
        body, _ = conform(resource.schema, given if isinstance(given, dict) else {})
    except TypeMismatch as error:
        raise handled_as(resource, resource.kind, str(error)) from None
    body.update(apiVersion=resource.api_version, kind=resource.kind)
    body.setdefault("metadata", {})
    if resource.kind == "SelfSubjectReview":
        body["metadata"]["creationTimestamp"] = now_text()
    elif "spec" in resource.schema.fields:
        _check(resource, body)
    body["status"] = _status(server, resource.kind, body, server.identify(request))
    return reply(body, 201)


def _check(resource: Resource, body: Json) -> None:
    spec = body.setdefault("spec", {})
    asked = [key for key in ("resourceAttributes", "nonResourceAttributes") if spec.get(key) is not None]
    if "AccessReview" in resource.kind and len(asked) != 1:
        why = "exactly one of nonResourceAttributes or resourceAttributes must be specified"
        raise invalid(resource.group, "", "", [wrong("spec.resourceAttributes", None, why)])


def _status(server: Server, kind: str, body: Json, user: str) -> Json:
    if kind == "SelfSubjectReview":
        return {"userInfo": accounts.user_info(user)}
    if kind == "TokenReview":
        token = str((body.get("spec") or {}).get("token", ""))
        known = server.user_of(token)
        if not known:
            return {"user": {}, "error": "invalid bearer token"}
        return {"authenticated": True, "user": accounts.user_info(known, server.api), "audiences": [accounts.ISSUER]}
    if kind == "SelfSubjectRulesReview":
        every = ["*"]
        return {
            "resourceRules": [{"verbs": every, "apiGroups": every, "resources": every}],
            "nonResourceRules": [{"verbs": every, "nonResourceURLs": every}],
            "incomplete": False,
        }
    return {"allowed": True, "reason": ONE_USER}
