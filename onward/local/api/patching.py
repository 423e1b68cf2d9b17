"""JSON patch (RFC 6902) and JSON merge patch (RFC 7386)."""

from __future__ import annotations

import re
from typing import Any

from onward.local.api.status import ApiError
from onward.local.api.store import clone, encode

Json = dict[str, Any]


def merge(target: Any, patch: Any) -> Any:
    """RFC 7386; never changes its arguments."""
    if not isinstance(patch, dict):
        return clone(patch)
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merge(result.get(key), value)
    return result


MAX_OPERATIONS = 10_000
MAX_COPIED = 3 << 20  # bytes: what is copied into itself doubles each time


def json_patch(target: Any, operations: Any) -> Any:
    """RFC 6902. A failing `test` or a missing path answers 422, as the real server does."""
    if len(operations) > MAX_OPERATIONS:
        text = f"The allowed maximum operations in a JSON patch is {MAX_OPERATIONS}, got {len(operations)}"
        raise ApiError(413, "RequestEntityTooLarge", text)
    document, copied = clone(target), 0
    for operation in operations:
        if not isinstance(operation, dict) or not isinstance(operation.get("path"), str):
            raise _unprocessable("each operation is an object with op and path")
        if operation.get("op") == "copy":
            copied += len(encode(_read(document, _steps(str(operation.get("from", ""))))))
            if copied > MAX_COPIED:
                text = f"the accumulated size increase of copy operations is {copied}, exceeding the limit {MAX_COPIED}"
                raise _unprocessable(f"Unable to complete the copy, {text}")
        document = _operate(document, operation)
    return document


def _unprocessable(text: str) -> ApiError:
    return ApiError(422, "Invalid", f"the server rejected our request due to an error in our request: {text}", {})


def _steps(pointer: str) -> list[str]:
    if pointer == "":
        return []
    if not pointer.startswith("/"):
        raise _unprocessable(f"invalid JSON pointer {pointer[:100]!r}")
    return [step.replace("~1", "/").replace("~0", "~") for step in pointer[1:].split("/")]


def _index(step: str, length: int, adding: bool) -> int:
    if adding and step == "-":
        return length
    if not re.fullmatch(r"-?\d{1,9}", step):
        raise _unprocessable(f"index {step[:60]} is none")
    found = int(step) + (length + adding if step.startswith("-") else 0)
    if not 0 <= found <= (length if adding else length - 1):
        raise _unprocessable(f"index {step[:60]} is out of bounds")
    return found


def _read(document: Any, steps: list[str]) -> Any:
    for step in steps:
        if isinstance(document, list):
            document = document[_index(step, len(document), False)]
        elif isinstance(document, dict) and step in document:
            document = document[step]
        else:
            raise _unprocessable(f"path /{'/'.join(steps)[:200]} does not exist")
    return document


def _operate(document: Any, operation: Json) -> Any:
    op, steps = operation.get("op"), _steps(operation["path"])
    operation.setdefault("value", None)
    if op == "test":
        try:
            found = _read(document, steps)
        except ApiError:
            found = None
        if found != operation["value"]:
            raise _unprocessable(f"testing value {operation['path'][:200]} failed")
        return document
    if op in ("move", "copy"):
        source = _steps(str(operation.get("from", "")))
        value = clone(_read(document, source))
        if op == "move":
            document = _remove(document, source)
        return _add(document, steps, value)
    if op == "remove":
        return _remove(document, steps)
    if op == "replace":
        return _replace(document, steps, clone(operation["value"]))
    if op == "add":
        return _add(document, steps, clone(operation["value"]))
    raise _unprocessable(f"unexpected kind of operation: {str(op)[:60]}")


def _add(document: Any, steps: list[str], value: Any) -> Any:
    if not steps:
        return value
    parent, last = _read(document, steps[:-1]), steps[-1]
    if isinstance(parent, list):
        parent.insert(_index(last, len(parent), True), value)
    elif isinstance(parent, dict):
        parent[last] = value
    else:
        raise _unprocessable(f"path /{'/'.join(steps)[:200]} does not exist")
    return document


def _replace(document: Any, steps: list[str], value: Any) -> Any:
    """A key of an object need not be there, as on the real server."""
    if not steps:
        return value
    parent, last = _read(document, steps[:-1]), steps[-1]
    if isinstance(parent, list):
        parent[_index(last, len(parent), False)] = value
        return document
    return _add(document, steps, value)


def _remove(document: Any, steps: list[str]) -> Any:
    if not steps:
        return None
    parent, last = _read(document, steps[:-1]), steps[-1]
    _read(parent, [last])
    if isinstance(parent, list):
        del parent[_index(last, len(parent), False)]
    else:
        del parent[last]
    return document
