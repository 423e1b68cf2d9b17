"""Who asks: the admin, the nodes, and service accounts with the tokens they are given (TokenRequest)."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import time
from typing import TYPE_CHECKING, Any

import msgspec
from aiohttp import web

from onward.local.api import certs
from onward.local.api.clock import now_text
from onward.local.api.request import Target
from onward.local.api.rest import Api
from onward.local.api.schema import builtin_types
from onward.local.api.status import bad_request, invalid, wrong
from onward.local.api.store import encode

if TYPE_CHECKING:
    from onward.local.api.server import Server

Json = dict[str, Any]
ISSUER = "https://kubernetes.default.svc.cluster.local"
TOKEN_REQUEST = builtin_types().kind("authentication.TokenRequest")


def user_info(user: str, api: Api | None = None) -> Json:
    if user.startswith("system:serviceaccount:"):
        namespace = user.split(":")[2]
        groups = ["system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated"]
    elif user == "admin":
        groups = ["system:masters", "system:authenticated"]
    else:
        groups = ["system:nodes", "system:authenticated"]
    found: Json = {"username": user, "groups": groups}
    if api is not None and user.startswith("system:serviceaccount:"):
        _, _, namespace, name = user.split(":")
        account = api.store.get(("serviceaccounts", namespace, name))
        found["uid"] = account.body["metadata"]["uid"] if account is not None else ""
    return found


def _part(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _unpart(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def _signature(api: Api, text: str) -> bytes:
    key = certs.token(api.settings.state, "accounts.key")
    return hmac.new(key.encode(), text.encode(), hashlib.sha256).digest()


def account_of(api: Api, token: str) -> str | None:
    """The service account a token speaks for, if it is ours, has not expired, and the account still is the same."""
    head, _, rest = token.partition(".")
    claims_text, _, signature = rest.partition(".")
    if not token.isascii():
        return None
    try:
        if not hmac.compare_digest(_signature(api, f"{head}.{claims_text}"), _unpart(signature)):
            return None
        claims = msgspec.json.decode(_unpart(claims_text), type=dict[str, Any])
    except (binascii.Error, ValueError, msgspec.DecodeError):
        return None
    account = claims.get("kubernetes.io", {})
    found = api.store.get(
        ("serviceaccounts", account.get("namespace", ""), account.get("serviceaccount", {}).get("name"))
    )
    if claims.get("exp", 0) < time.time() or found is None:
        return None
    if found.body["metadata"]["uid"] != account.get("serviceaccount", {}).get("uid"):
        return None
    return str(claims["sub"])


async def issue(server: Server, request: web.Request, target: Target) -> web.Response:
    """POST serviceaccounts/NAME/token."""
    from onward.local.api.server import reply

    account = server.api.get(target)
    body = await server.body(request, TOKEN_REQUEST)
    if not isinstance(body, dict):
        raise bad_request("the body must be a TokenRequest")
    spec = body.get("spec") or {}
    seconds = spec.get("expirationSeconds") or 3600
    if not isinstance(seconds, int) or seconds < 600:
        cause = wrong("spec.expirationSeconds", seconds, "may not specify a duration less than 10 minutes")
        raise invalid("authentication.k8s.io", "TokenRequest", "", [cause])
    audiences = spec.get("audiences") or [ISSUER]
    now = int(time.time())
    user = f"system:serviceaccount:{target.namespace}:{target.name}"
    uid = account.body["metadata"]["uid"]
    claims = {
        "aud": audiences, "exp": now + seconds, "iat": now, "nbf": now, "iss": ISSUER, "sub": user,
        "kubernetes.io": {"namespace": target.namespace, "serviceaccount": {"name": target.name, "uid": uid}},
    }  # fmt: skip
    text = f"{_part(encode({'alg': 'HS256', 'typ': 'JWT'}))}.{_part(encode(claims))}"
    token = f"{text}.{_part(_signature(server.api, text))}"
    answer = {
        "kind": "TokenRequest", "apiVersion": "authentication.k8s.io/v1",
        "metadata": {"name": target.name, "namespace": target.namespace, "uid": uid, "creationTimestamp": now_text()},
        "spec": {"boundObjectRef": None, **spec, "audiences": audiences, "expirationSeconds": seconds},
        "status": {"token": token, "expirationTimestamp": now_text(seconds)},
    }  # fmt: skip
    return reply(answer, 201)
