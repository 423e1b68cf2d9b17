"""Errors as the API speaks them: `Status` objects, with the wording that programs and people know."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from onward.errors import OnwardError

Json = dict[str, Any]


@dataclass(frozen=True)
class Cause:
    """One problem of one field."""

    reason: str
    message: str
    field: str

    def text(self) -> str:
        return f"{self.field}: {self.message}" if self.field else self.message

    def encode(self) -> Json:
        return {"reason": self.reason, "message": self.message, "field": self.field}


class ApiError(OnwardError):
    """Ends a request with this code and Status."""

    def __init__(
        self,
        code: int,
        reason: str,
        message: str,
        details: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.code, self.reason, self.message = code, reason, message
        self.details, self.headers = None if details is None else dict(details), dict(headers or {})

    def status(self) -> Json:
        body: Json = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
        }
        if self.reason:
            body["reason"] = self.reason
        if self.details is not None:
            body["details"] = self.details
        body["code"] = self.code
        return body


def qualified(name: str, group: str) -> str:
    return f"{name}.{group}" if group else name


def _details(name: str, group: str, kind: str, **more: Any) -> Json:
    found: Json = {"name": name, "group": group, "kind": kind, **more}
    return {key: value for key, value in found.items() if value not in ("", None, [])}


def not_found(group: str, plural: str, name: str) -> ApiError:
    text = f'{qualified(plural, group)} "{name}" not found'
    return ApiError(404, "NotFound", text, _details(name, group, plural))


def no_such_path() -> ApiError:
    return ApiError(404, "NotFound", "the server could not find the requested resource", {})


class NoSuchPage(ApiError):
    """A path that no API has anything to say about: answered in plain text."""

    def __init__(self) -> None:
        super().__init__(404, "NotFound", "404 page not found")


def internal(message: str) -> ApiError:
    """What the real server does not blame on anybody."""
    return ApiError(500, "", message)


def already_exists(group: str, plural: str, name: str) -> ApiError:
    text = f'{qualified(plural, group)} "{name}" already exists'
    return ApiError(409, "AlreadyExists", text, _details(name, group, plural))


MODIFIED = "the object has been modified; please apply your changes to the latest version and try again"


def conflict(group: str, plural: str, name: str, why: str = MODIFIED) -> ApiError:
    text = f'Operation cannot be fulfilled on {qualified(plural, group)} "{name}": {why}'
    return ApiError(409, "Conflict", text, _details(name, group, plural))


def apply_conflict(conflicts: Sequence[tuple[str, str, str]]) -> ApiError:
    """Server-side apply: (manager, how it wrote, field path) of every field someone else owns."""
    by_manager: dict[str, list[str]] = {}
    for manager, how, path in conflicts:
        by_manager.setdefault(f'"{manager}"{how}', []).append(path)
    parts = []
    for manager, paths in by_manager.items():
        if len(conflicts) == 1:
            parts.append(f"conflict with {manager}: {paths[0]}")
        else:
            parts.append(f"conflicts with {manager}:\n" + "\n".join(f"- {path}" for path in paths))
    count = len(conflicts)
    text = f"Apply failed with {count} conflict{'s' if count > 1 else ''}: " + "\n".join(parts)
    causes = [
        {"reason": "FieldManagerConflict", "message": f'conflict with "{manager}"{how}', "field": path}
        for manager, how, path in conflicts
    ]
    return ApiError(409, "Conflict", text, {"causes": causes})


def invalid(group: str, kind: str, name: str, causes: Sequence[Cause]) -> ApiError:
    """All problems at once, as the real server writes them."""
    texts = list(dict.fromkeys(cause.text() for cause in causes))
    listed = texts[0] if len(texts) == 1 else "[" + ", ".join(texts) + "]"
    text = f'{qualified(kind, group)} "{name}" is invalid: {listed}'
    return ApiError(422, "Invalid", text, _details(name, group, kind, causes=[cause.encode() for cause in causes]))


def bad_request(message: str) -> ApiError:
    return ApiError(400, "BadRequest", message)


def forbidden(group: str, plural: str, name: str, why: str, causes: Sequence[Json] = ()) -> ApiError:
    text = f'{qualified(plural, group)} "{name}" is forbidden: {why}'
    return ApiError(403, "Forbidden", text, _details(name, group, plural, causes=list(causes)))


def method_not_allowed() -> ApiError:
    return ApiError(405, "MethodNotAllowed", "the server does not allow this method on the requested resource", {})


def unsupported_media(accepted: Sequence[str] = ()) -> ApiError:
    if not accepted:
        return ApiError(415, "UnsupportedMediaType", "415: Unsupported Media Type", {})
    listed = ", ".join(accepted)
    text = f"the body of the request was in an unknown format - accepted media types include: {listed}"
    return ApiError(415, "UnsupportedMediaType", text)


def not_acceptable(known: bool) -> ApiError:
    """A form of the answer that nobody speaks, or one of a known format that is not there."""
    types = "application/json"
    if known:
        return ApiError(406, "NotAcceptable", f"only the following media types are accepted: {types}")
    return ApiError(406, "NotAcceptable", f"406: Not Acceptable\n\nAvailable representations: {types}", {})


def expired(message: str) -> ApiError:
    return ApiError(410, "Expired", message)


def not_supported(message: str) -> ApiError:
    """What this server leaves out on purpose. Says so, and what to do instead."""
    return ApiError(501, "NotImplemented", message)


def required(field: str, why: str = "") -> Cause:
    return Cause("FieldValueRequired", "Required value" + (f": {why}" if why else ""), field)


def shown(value: Any) -> str:
    """A value as the server quotes it in messages, never a megabyte of it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return str(value)
    import msgspec

    if isinstance(value, str):
        return json.dumps(value if len(value) <= 300 else value[:300] + "...", ensure_ascii=False)

    text = msgspec.json.encode(value).decode()
    return text if len(text) <= 300 else text[:300] + "..."


def wrong(field: str, value: Any, why: str) -> Cause:
    return Cause("FieldValueInvalid", f"Invalid value: {shown(value)}: {why}", field)


def unsupported(field: str, value: Any, supported: Sequence[str]) -> Cause:
    listed = ", ".join(f'"{each}"' for each in supported)
    return Cause("FieldValueNotSupported", f"Unsupported value: {shown(value)}: supported values: {listed}", field)


def too_long(field: str, most: int) -> Cause:
    return Cause("FieldValueTooLong", f"Too long: may not be more than {most} bytes", field)


def duplicate(field: str, value: Any) -> Cause:
    return Cause("FieldValueDuplicate", f"Duplicate value: {shown(value)}", field)


def not_allowed(field: str, why: str) -> Cause:
    return Cause("FieldValueForbidden", f"Forbidden: {why}", field)


def missing_reference(field: str, value: Any) -> Cause:
    return Cause("FieldValueNotFound", f"Not found: {shown(value)}", field)


def success(message: str = "", details: Mapping[str, Any] | None = None, code: int = 0) -> Json:
    body: Json = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}
    if code:
        body["code"] = code
    if message:
        body["message"] = message
    if details:
        body["details"] = dict(details)
    return body
