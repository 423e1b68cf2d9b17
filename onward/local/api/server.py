"""HTTP: who may ask, what they ask for, and in which form they get it."""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections.abc import Mapping
from typing import Any

from aiohttp import web

from onward.local.api import (
    accounts,
    deletion,
    discovery,
    health,
    openapi,
    patches,
    protobuf,
    reviews,
    subresources,
    tables,
    views,
    watching,
)
from onward.local.api.decoding import MAX_BODY, TypeMismatch, conform, object_of
from onward.local.api.request import Target, delete_options, parse_path, verb, write_options
from onward.local.api.rest import Api, Page
from onward.local.api.schema import Schema, builtin_types
from onward.local.api.status import (
    ApiError,
    NoSuchPage,
    bad_request,
    method_not_allowed,
    no_such_path,
    not_acceptable,
    not_supported,
    unsupported_media,
    wrong,
)
from onward.local.api.store import Item, StoreError, encode

Json = dict[str, Any]
log = logging.getLogger("onward.local.api")
DELETE_OPTIONS = builtin_types().kind("meta.DeleteOptions")
PORTION = 200
FORMS = ("Table", "PartialObjectMetadata", "PartialObjectMetadataList")


class Server:
    """Routes every request. One method per shape of answer."""

    def __init__(self, api: Api, tokens: Mapping[str, str], address: str = "") -> None:
        self.api, self.tokens, self.address = api, dict(tokens), address
        self.app = web.Application(client_max_size=MAX_BODY)
        self.app.router.add_route("*", "/{path:.*}", self.handle)
        self.openapi = openapi.Documents(api.registry)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        try:
            return await self._authorized(request)
        except NoSuchPage as error:
            return web.Response(text=error.message + "\n", status=404)
        except ApiError as error:
            return _json(error.status(), error.code, headers=error.headers)
        except StoreError as error:
            text = f"the write was not stored: {error}; nothing was changed, free some space and try again"
            return _json(ApiError(500, "InternalError", text).status(), 500)
        except web.HTTPRequestEntityTooLarge:
            text = f"Request entity too large: limit is {MAX_BODY}"
            return _json(ApiError(413, "RequestEntityTooLarge", text).status(), 413)
        except ConnectionError:
            raise
        except web.RequestPayloadError as error:
            return _json(bad_request(f"the body cannot be read: {error}").status(), 400)
        except Exception as error:
            log.exception("%s %s failed", request.method, request.path)
            text = f"Internal error occurred: {type(error).__name__}: {error}; a bug in onward, please report it"
            return _json(ApiError(500, "InternalError", text).status(), 500)

    async def _authorized(self, request: web.Request) -> web.StreamResponse:
        path = request.path
        healthy = health.answer(request)
        if healthy is not None:
            return healthy
        if not path.startswith("/version") or request.headers.get("Authorization"):
            self.identify(request)
        refuse_options(request)
        if path in ("/version", "/version/"):  # the Python client's way to say it
            return _json(discovery.VERSION)
        if request.method == "GET":
            found = self._discover(request, path.strip("/"))
            if found is not None:
                return found
        return await self._resource(request)

    def identify(self, request: web.Request) -> str:
        """Who asks; 401 for anybody without a good token."""
        scheme, _, given = request.headers.get("Authorization", "").partition(" ")
        user = self.user_of(given.strip()) if scheme.lower() == "bearer" else None
        if user is None:
            raise ApiError(401, "Unauthorized", "Unauthorized")
        return user

    def user_of(self, given: str) -> str | None:
        for token, user in self.tokens.items():
            if hmac.compare_digest(token.encode(), given.encode("utf-8", "replace")):
                return user
        return accounts.account_of(self.api, given)

    # -- discovery and schemas -----------------------------------------------------------------------------------

    def _discover(self, request: web.Request, path: str) -> web.Response | None:
        parts = path.split("/") if path else []
        accept, registry = request.headers.get("Accept", ""), self.api.registry
        if not parts:
            return _json({"paths": ["/api", "/api/v1", "/apis", "/healthz", "/openapi/v2", "/openapi/v3", "/version"]})
        if parts in (["api"], ["apis"]):
            core = parts == ["api"]
            for form in ("v2", "v2beta1"):
                if _plain(discovery.AGGREGATED.format(form)) in _plain(accept):
                    body = discovery.aggregated(registry, core, form)
                    return _json(body, content_type=discovery.AGGREGATED.format(form))
            return _json(discovery.versions(self.address) if core else discovery.groups(registry))
        if parts[0] == "openapi":
            return self.openapi.answer(request, parts[1:])
        if parts[0] == "api" and len(parts) == 2:
            return _json_or(no_such_path(), discovery.resources(registry, "", parts[1]))
        if parts[0] == "apis" and len(parts) == 2:
            return _json_or(NoSuchPage(), discovery.group(registry, parts[1]))
        if parts[0] == "apis" and len(parts) == 3:
            known = parts[1] in registry.groups()
            missing = no_such_path() if known else NoSuchPage()
            return _json_or(missing, discovery.resources(registry, parts[1], parts[2]))
        return None

    # -- resources -----------------------------------------------------------------------------------------------

    async def _resource(self, request: web.Request) -> web.StreamResponse:
        target = parse_path(self.api.registry, request.path)
        query = request.query
        if target.subresource and target.subresource not in ("status",):
            return await subresources.handle(self, request, target)
        what = verb(request.method, target, query)
        if what not in target.resource.verbs and not target.subresource:
            raise method_not_allowed()
        if target.resource.namespaced and not target.namespace and what not in ("list", "watch"):
            raise method_not_allowed()
        form = accepted_form(request.headers.get("Accept", ""))
        include = query.get("includeObject", "")
        if form == "Table" and include not in ("", "Metadata", "Object", "None"):
            why = wrong("includeObject", include[:60], "must be 'Metadata', 'Object', 'None', or empty").text()
            raise bad_request(f"Unable to convert to Table as requested: {why}")
        if what == "watch":
            return await self._watch(request, target, form)
        if what == "list":
            return await self._list(request, target, form)
        if what == "get":
            return self.show(target, self.api.get(target, query.get("resourceVersion", "")), form, query)
        if what in ("delete", "deletecollection"):
            return await self._delete(request, target, what, form)
        content = request.headers.get("Content-Type", "")
        kind = {"create": "CreateOptions", "update": "UpdateOptions", "patch": "PatchOptions"}[what]
        options = write_options(query, request.headers.get("User-Agent", ""), kind, patches.is_apply(content))
        if what == "create":
            if target.name:
                raise method_not_allowed()
            answer = await reviews.answer(self, request, target, options)
            if answer is not None:
                return answer
            item = await self.api.create(target, await self.body(request, target.resource.schema), options)
            return self.show(target, item, form, query, 201, options.warnings)
        if what == "update":
            item, created = await self.api.update(target, await self.body(request, target.resource.schema), options)
        else:
            item, created = await patches.patch(self.api, target, content, await request.read(), options)
        return self.show(target, item, form, query, 201 if created else 200, options.warnings)

    async def body(self, request: web.Request, schema: Schema) -> Json:
        """The request's object, from JSON, YAML or protobuf."""
        content = request.headers.get("Content-Type") or "application/json"
        raw = await request.read()
        if "protobuf" in content:
            return protobuf.read(schema, raw)
        if content.split(";")[0].strip() not in ("application/json", "application/yaml", "text/plain", "*/*"):
            raise unsupported_media(["application/json", "application/yaml", "application/vnd.kubernetes.protobuf"])
        return object_of(raw, content, schema.name if schema is not DELETE_OPTIONS else "")

    def show(
        self,
        target: Target,
        item: Item,
        form: str,
        query: Mapping[str, str],
        code: int = 200,
        warnings: list[str] | None = None,
    ) -> web.Response:
        resource = target.resource
        headers = warning_headers(warnings or [])
        if form == "":
            return _raw(views.raw(resource, item), code, headers)
        body = views.shown_form(resource, item.body)
        if form == "Table":
            return _json(tables.table(resource, [body], item.rv, include=query.get("includeObject", "")), code, headers)
        return _json(views.partial(body), code, headers)

    async def _list(self, request: web.Request, target: Target, form: str) -> web.StreamResponse:
        query, resource = request.query, target.resource
        page = self.api.list(target, query)
        include = query.get("includeObject", "")
        if form == "Table":
            head: Json = tables.table(resource, [], page.version)
            del head["rows"]
            name, one = (
                "rows",
                lambda item: encode(tables.row(resource, views.shown_form(resource, item.body), include)),
            )
        elif form:
            head = {"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1"}
            name, one = "items", lambda item: encode(views.partial(views.shown_form(resource, item.body)))
        else:
            head = {"kind": resource.many, "apiVersion": resource.api_version}
            name, one = "items", lambda item: views.raw_in_list(resource, item)
        head["metadata"] = list_meta(page, resource.custom and form == "")
        opening = encode(head)[:-1] + f',"{name}":['.encode()
        if len(page.items) <= PORTION:
            return _raw(opening + b",".join(map(one, page.items)) + b"]}")
        # A long list goes out in portions, so that others are served meanwhile and memory stays small.
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        for start in range(0, len(page.items), PORTION):
            await response.write(opening + b",".join(map(one, page.items[start : start + PORTION])))
            opening = b","
            await asyncio.sleep(0)
        await response.write(b"]}")
        await response.write_eof()
        return response

    async def _watch(self, request: web.Request, target: Target, form: str) -> web.StreamResponse:
        encoder = watching.Encoder(target.resource, form, request.query.get("includeObject", ""))
        lines = watching.stream(self.api, target, request.query, encoder)
        await lines.__anext__()  # raises what is wrong with the request before the headers go out
        response = web.StreamResponse(
            headers={"Content-Type": "application/json", "Cache-Control": "no-cache, private"}
        )
        await response.prepare(request)
        try:
            async for line in lines:
                await response.write(line)
            await response.write_eof()
        except (ConnectionError, RuntimeError):
            pass  # the client hung up; it knows its last resource version
        finally:
            await lines.aclose()
        return response

    async def _delete(self, request: web.Request, target: Target, what: str, form: str) -> web.Response:
        raw = await request.read()
        try:
            body = conform(DELETE_OPTIONS, await self.body(request, DELETE_OPTIONS))[0] if raw else None
        except TypeMismatch as error:
            raise bad_request(str(error)) from None
        options = delete_options(request.query, body)
        if what == "delete":
            item, gone = await deletion.delete(self.api, target, options)
            status = deletion.outcome(target, item, gone)
            return _json(status) if status is not None else self.show(target, item, form, request.query)
        page = self.api.list(target, request.query)
        for item in page.items:
            meta = item.body["metadata"]
            one = Target(target.resource, meta.get("namespace", ""), meta["name"], "")
            try:
                await deletion.delete(self.api, one, options)
            except ApiError as error:
                if error.code not in (404, 409):
                    raise
        head = {"kind": target.resource.many, "apiVersion": target.resource.api_version, "metadata": list_meta(page)}
        items = b",".join(views.raw_in_list(target.resource, item) for item in page.items)
        return _raw(encode(head)[:-1] + b',"items":[' + items + b"]}")


UNSERVED_PATHS = {
    "metrics": "this server does not measure itself; bench/apiserver.py does",
    "logs": "the logs of this cluster's processes are in the directory logs of its state",
    "debug": "there is no profiler in this server",
}
IMPERSONATION = "everybody here may do everything, so nobody else is there to be; use a token of theirs"


def refuse_options(request: web.Request) -> None:
    """What would change the meaning of any request, and what stands beside the resources."""
    if any(name.lower().startswith("impersonate-") for name in request.headers):
        raise not_supported(f"impersonation is not supported: {IMPERSONATION}")
    first = request.path.strip("/").partition("/")[0]
    if first in UNSERVED_PATHS:
        raise not_supported(f"/{first} is not supported: {UNSERVED_PATHS[first]}")


def list_meta(page: Page, custom: bool = False) -> Json:
    meta: Json = {"resourceVersion": str(page.version)}
    if custom:
        meta["continue"] = ""
    if page.token:
        meta["continue"] = page.token
        if page.remaining is not None:
            meta["remainingItemCount"] = page.remaining
    return meta


def accepted_form(accept: str) -> str:
    """The first form in the Accept header that we serve: plain JSON is "", or Table, PartialObjectMetadata."""
    if not accept:
        return ""
    known = False
    for part in accept.split(","):
        words = [word.strip() for word in part.split(";")]
        named = dict(word.split("=", 1) for word in words[1:] if "=" in word)
        if words[0] not in ("application/json", "application/*", "*/*"):
            continue
        known = True
        if "as" not in named:
            return ""
        if named["as"] in FORMS and named.get("v") == "v1" and named.get("g") == "meta.k8s.io":
            return "Table" if named["as"] == "Table" else "PartialObjectMetadata"
    raise not_acceptable(known)


def warning_headers(warnings: list[str]) -> list[tuple[str, str]]:
    found = []
    for text in dict.fromkeys(warnings):
        clean = "".join(char if char.isprintable() and ord(char) < 256 else "?" for char in text)[:1000]
        escaped = clean.replace("\\", "\\\\").replace('"', '\\"')
        found.append(("Warning", f'299 - "{escaped}"'))
    return found


def _plain(text: str) -> str:
    return text.replace(" ", "")


def _raw(data: bytes, code: int = 200, headers: Any = None, content_type: str = "") -> web.Response:
    response = web.Response(body=data, status=code, headers=headers or None)
    response.headers["Content-Type"] = content_type or "application/json"
    return response  # never compressed: over loopback that costs more than it saves


def _json(body: Json, code: int = 200, headers: Any = None,
          content_type: str = "") -> web.Response:  # fmt: skip
    return _raw(encode(body), code, headers, content_type)


def _json_or(missing: ApiError, body: Json | None) -> web.Response:
    if body is None:
        raise missing
    return _json(body)


reply = _json
