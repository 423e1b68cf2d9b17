"""Fields that do not exist, and values of the wrong type, with a did-you-mean: what `onward validate` adds to `read`.

The schema is that of the CRD. Pod templates are open there, so that fields of any version of Kubernetes pass; here
their usual fields are known (`podfields.yaml`), and only what looks like a slip of the pen for one is called wrong.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from importlib.resources import files
from typing import Any

from onward.api.job import Obj, Problem
from onward.core.policy import closest, did_you_mean

Path = tuple[str | int, ...]
TYPES: Mapping[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "boolean": (bool,),
    "integer": (int,),
    "number": (int, float),
}
UNKNOWN, WRONG_TYPE, MISSING = "UnknownField", "InvalidType", "MissingField"
OBJECT = ("apiVersion", "kind", "metadata")


@lru_cache(maxsize=1)
def _pod_fields() -> dict[tuple[str, ...], frozenset[str]]:
    import yaml

    listed = yaml.safe_load(files("onward.api").joinpath("podfields.yaml").read_text(encoding="utf-8"))
    return {tuple(place.split("/")): frozenset(names.split()) for place, names in listed.items()}


def check(crd: Obj, obj: Obj) -> list[Problem]:
    """Every field of an object that its definition does not know, or knows otherwise."""
    return list(_walk(_schema(crd, obj), obj, ()))


def misshapen(crd: Obj, obj: Obj) -> list[Problem]:
    """Only what has the wrong type, or lacks something without which it is nothing: nobody could read it."""
    return [problem for problem in check(crd, obj) if problem.reason != UNKNOWN]


def _schema(crd: Obj, obj: Obj) -> Obj:
    version = str(obj.get("apiVersion", "")).rpartition("/")[2]
    served = [v for v in crd["spec"]["versions"] if v["name"] == version] or crd["spec"]["versions"][:1]
    found: Obj = served[0]["schema"]["openAPIV3Schema"]
    return found


def _walk(schema: Obj, value: Any, path: Path) -> Iterator[Problem]:
    if value is None:
        return
    wanted = schema.get("type")
    if schema.get("x-kubernetes-int-or-string") and (not isinstance(value, (int, str)) or isinstance(value, bool)):
        yield Problem(WRONG_TYPE, f"{_shown(path)} must be a number or a text, not {value!r:.40}", path)
        return
    if wanted and (not isinstance(value, TYPES[wanted]) or (isinstance(value, bool) and wanted != "boolean")):
        yield Problem(WRONG_TYPE, f"{_shown(path)} must be {_article(wanted)}, not {value!r:.40}", path)
        return
    if isinstance(value, dict):
        yield from _object(schema, value, path)
    elif isinstance(value, list):
        items = schema.get("items") or {}
        for i, each in enumerate(value):
            if each is None and items.get("type"):
                yield Problem(
                    WRONG_TYPE, f"{_shown((*path, i))} must be {_article(items['type'])}, not null", (*path, i)
                )
            yield from _walk(items, each, (*path, i))


def _object(schema: Obj, value: Obj, path: Path) -> Iterator[Problem]:
    known = schema.get("properties") or {}
    extra = schema.get("additionalProperties")
    open_ended = schema.get("x-kubernetes-preserve-unknown-fields") or extra
    usual = _usual(path)
    for name in schema.get("required") or () if path and path[-1] != "spec" else ():
        if value.get(name) is None:
            yield Problem(MISSING, f"{_shown((*path, name))} is not set", path)
    for key, each in value.items():
        below = (*path, str(key))
        if key in known:
            yield from _walk(known[key], each, below)
        elif isinstance(extra, dict):
            yield from _walk(extra, each, below)
        elif path == ("metadata",):
            continue
        elif not open_ended:
            yield _unknown(below, [*known, *(OBJECT if not path else ())])
        elif usual and key not in usual and closest(str(key), usual):
            yield _unknown(below, usual)
        else:
            yield from _slips(each, below)


def _slips(value: Any, path: Path) -> Iterator[Problem]:
    """Below what the schema knows: only what is nearly a usual field."""
    if isinstance(value, dict):
        usual = _usual(path)
        for key, each in value.items():
            if usual and key not in usual and closest(str(key), usual):
                yield _unknown((*path, str(key)), usual)
            else:
                yield from _slips(each, (*path, str(key)))
    elif isinstance(value, list):
        for i, each in enumerate(value):
            yield from _slips(each, (*path, i))


def _usual(path: Path) -> frozenset[str]:
    if "template" not in path:
        return frozenset()
    inside = path[path.index("template") :]
    return _pod_fields().get(tuple("*" if isinstance(word, int) else word for word in inside), frozenset())


def _unknown(path: Path, known: Any) -> Problem:
    return Problem(UNKNOWN, f"there is no field {_shown(path)}{did_you_mean(str(path[-1]), known)}", path)


def _shown(path: Path) -> str:
    return "".join(f"[{word}]" if isinstance(word, int) else f".{word}" for word in path).lstrip(".") or "the object"


def _article(kind: str) -> str:
    return {"integer": "a whole number", "boolean": "true or false", "string": "a text", "array": "a list"}.get(
        kind, f"an {kind}" if kind[0] in "aeiou" else f"a {kind}"
    )
