"""x-kubernetes-validations: CEL rules of a CRD, evaluated by a CEL library where it is installed.

The library is a compiled one and needs Python 3.11, so it is an extra (`onward-train[local]`); without it a CRD with
rules is accepted with a warning that they are not checked here. A function the library does not know is refused when
the CRD is created, never ignored later.
"""

from __future__ import annotations

import json
import re
from functools import lru_cache
from typing import Any

from onward.local.api import rulefields
from onward.local.api.status import Cause

Json = dict[str, Any]
BUILT_IN = {
    "size", "has", "all", "exists", "exists_one", "map", "filter",
    "matches", "contains", "startsWith", "endsWith",
    "int", "uint", "double", "string", "bool", "bytes", "type", "dyn", "duration", "timestamp", "getFullYear",
    "getMonth", "getHours", "getMinutes", "getSeconds", "in",
}  # fmt: skip
MISSING = (
    "CEL rules (x-kubernetes-validations) are not checked here, because no CEL library is installed; "
    "pip install 'onward-train[local]' on Python 3.11 or newer adds it"
)


def _substring(text: str, start: int, end: int | None = None) -> str:
    return text[start:] if end is None else text[start:end]


# What Kubernetes adds to CEL, as far as it is plain functions of plain values.
ADDED: dict[str, Any] = {
    "sum": lambda values: sum(values),
    "min": lambda values: min(values),
    "max": lambda values: max(values),
    "isSorted": lambda values: list(values) == sorted(values),
    "indexOf": lambda text, part: text.find(part) if isinstance(text, str) else ([*text, part].index(part)),
    "lastIndexOf": lambda text, part: text.rfind(part),
    "lowerAscii": lambda text: text.lower(),
    "upperAscii": lambda text: text.upper(),
    "replace": lambda text, old, new: text.replace(old, new),
    "split": lambda text, by: text.split(by),
    "join": lambda values, by="": by.join(values),
    "substring": _substring,
    "trim": lambda text: text.strip(),
}


@lru_cache(maxsize=1)
def library() -> Any:
    try:
        import cel
    except ImportError:
        return None
    return cel


@lru_cache(maxsize=500)
def _program(text: str) -> Any:
    return library().compile(text)


_within: dict[int, tuple[Json, bool]] = {}


def within(schema: Json) -> bool:
    """Is there a rule anywhere in a schema? Remembered, because schemas live long."""
    known = _within.get(id(schema))
    if known is None or known[0] is not schema:
        if len(_within) > 1000:  # of CRDs that came and went
            _within.clear()
        known = _within[id(schema)] = (schema, '"x-kubernetes-validations"' in json.dumps(schema))
    return known[1]


def functions_of(text: str) -> set[str]:
    return set(re.findall(r"([A-Za-z_]\w*)\s*\(", _bare(text)))


def _bare(text: str) -> str:
    """Without what stands in quotes."""
    return re.sub(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"", "''", text)


MOST = 1_000_000
BUDGET = "validation failed due to running out of cost budget, no further validation rules will be run"


def too_much(text: str, value: Any) -> bool:
    """Loops in loops over long lists: nobody else would be served while it is worked out."""
    loops = _loops(text)
    return loops > 1 and _longest(value) ** loops > MOST


@lru_cache(maxsize=500)
def _loops(text: str) -> int:
    """How many of them stand in one another."""
    most, open_ = 0, list[bool]()
    for word in re.findall(r"\.(?:all|exists|exists_one|map|filter)\s*\(|[()]", _bare(text)):
        if word == ")":
            open_ = open_[:-1]
        else:
            open_.append(word != "(")
            most = max(most, sum(open_))
    return most


def _longest(value: Any) -> int:
    if isinstance(value, dict):
        return max([len(value), *map(_longest, value.values())])
    return max([len(value), *map(_longest, value)]) if isinstance(value, list) else 0


def problem(text: str, schema: Json, root: bool) -> str:
    """Why a rule of a schema cannot be used here; empty when it can."""
    fields = rulefields.unknown(text, schema, root)
    if library() is None:
        return f"compilation failed: {fields}" if fields else ""
    unknown = functions_of(text) - BUILT_IN - set(ADDED)
    if unknown:
        return f"compilation failed: onward's API server does not support the function {sorted(unknown)[0]!r}"
    try:
        _program(text)
    except ValueError as error:
        return f"compilation failed: {str(error)[:300]}"
    return f"compilation failed: {fields}" if fields else ""


def _context(value: Any, old: Any) -> Any:
    context = library().Context()
    for name, function in ADDED.items():
        context.add_function(name, function)
    context.add_variable("self", value)
    if old is not None:
        context.add_variable("oldSelf", old)
    return context


def check(schema: Json, value: Any, path: str, old: Any) -> list[Cause]:
    """The rules of one schema node. A rule with oldSelf is only asked when there is an old value."""
    if library() is None:
        return []
    causes: list[Cause] = []
    context = None
    for rule in schema["x-kubernetes-validations"]:
        text = rule["rule"]
        if re.search(r"\boldSelf\b", text) and old is None:
            continue
        if too_much(text, value):
            return [*causes, Cause("FieldValueInvalid", f"Invalid value: {BUDGET}", path or "<nil>")]
        if context is None:
            if any("__" in rule["rule"] for rule in schema["x-kubernetes-validations"]):
                value, old = rulefields.readable(schema, value), rulefields.readable(schema, old)
            context = _context(value, old)
        try:
            good = _program(text).execute(context)
            failure = ""
        except (RuntimeError, KeyError, ValueError, TypeError, ZeroDivisionError, OverflowError, IndexError) as error:
            good, failure = False, f"rule evaluation error: {error}: evaluating rule: {text}"
        if good is True:
            continue
        message = failure or _message(rule, context)
        where = path + rule["fieldPath"] if rule.get("fieldPath") else path
        if rule.get("reason") == "FieldValueForbidden":
            causes.append(Cause("FieldValueForbidden", f"Forbidden: {message}", where or "<nil>"))
        elif rule.get("reason") == "FieldValueRequired":
            causes.append(Cause("FieldValueRequired", f"Required value: {message}", where or "<nil>"))
        else:
            causes.append(Cause("FieldValueInvalid", f"Invalid value: {message}", where or "<nil>"))
    return causes


def _message(rule: Json, context: Any) -> str:
    if rule.get("messageExpression"):
        try:
            found = _program(rule["messageExpression"]).execute(context)
            if isinstance(found, str) and found.strip() and "\n" not in found:
                return found
        except (RuntimeError, KeyError, ValueError, TypeError):
            pass  # as on the real server: the plain message is used instead
    return str(rule.get("message") or f"failed rule: {rule['rule'].strip()}")
