"""Quantities as Kubernetes writes them: `500m`, `16Gi`, `1e3`. Exact, in whole numbers."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Any

_BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50, "Ei": 2**60}
_DECIMAL = {"n": "1e-9", "u": "1e-6", "m": "1e-3", "": "1", "k": "1e3", "M": "1e6", "G": "1e9"}
_DECIMAL |= {"T": "1e12", "P": "1e15", "E": "1e18"}
_FORM = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+))(?:([KMGTPE]i)|([eE][+-]?\d{1,3})|([numkMGTPE]?))")
_LONGEST = 64


class QuantityError(ValueError):
    """Not a quantity."""


def parse(value: Any) -> Decimal:
    """The number that a quantity stands for."""
    text = str(value).strip()
    found = _FORM.fullmatch(text) if len(text) <= _LONGEST else None
    if found is None:
        raise QuantityError(f"{text[:40]!r} is not a quantity; write for example 500m, 2, 16Gi")
    number, binary, exponent, suffix = found.groups()
    if binary:
        return Decimal(number) * _BINARY[binary]
    if exponent:
        return Decimal(number + exponent)
    return Decimal(number) * Decimal(_DECIMAL[suffix])


def _up(value: Decimal) -> int:
    whole = int(value)
    return whole + 1 if value > whole else whole


def whole(value: Any) -> int:
    """Bytes, devices, pods: rounded up."""
    return _up(parse(value))


def millis(value: Any) -> int:
    """Thousandths, as cpu is counted: rounded up."""
    return _up(parse(value) * 1000)


def amount(resource: str, value: Any) -> int:
    """In the unit in which that resource is added up: cpu in thousandths, everything else whole."""
    return millis(value) if resource == "cpu" else whole(value)


def write(resource: str, value: int) -> str:
    """The other way round, as people write it."""
    if resource == "cpu":
        return str(value // 1000) if value % 1000 == 0 else f"{value}m"
    if resource in ("memory", "ephemeral-storage") and value:
        for suffix in ("Gi", "Mi", "Ki"):
            if value % _BINARY[suffix] == 0:
                return f"{value // _BINARY[suffix]}{suffix}"
    return str(value)


def pod_requests(spec: dict[str, Any]) -> dict[str, int]:
    """What a pod needs: its containers and sidecars together, or its largest init container; and its overhead.

    What it asks for as a whole (`spec.resources`) counts instead. A limit without a request is a request, as the API
    server's defaulting has it.
    """
    together: dict[str, int] = {}
    peak: dict[str, int] = {}
    for container in spec.get("initContainers") or []:
        wants = _requests(container)
        if container.get("restartPolicy") == "Always":
            _add(together, wants)
            wants = {}
        for name in {*wants, *together}:
            peak[name] = max(peak.get(name, 0), wants.get(name, 0) + together.get(name, 0))
    for container in spec.get("containers") or []:
        _add(together, _requests(container))
    needs = {name: max(together.get(name, 0), peak.get(name, 0)) for name in {*together, *peak}}
    needs = {**_amounts(spec, "limits"), **needs, **_amounts(spec, "requests")}
    _add(needs, {k: amount(k, v) for k, v in (spec.get("overhead") or {}).items()})
    return needs


def _requests(container: dict[str, Any]) -> dict[str, int]:
    return {**_amounts(container, "limits"), **_amounts(container, "requests")}


def _amounts(container_or_pod: dict[str, Any], kind: str) -> dict[str, int]:
    given = (container_or_pod.get("resources") or {}).get(kind) or {}
    return {name: amount(name, value) for name, value in given.items()}


def _add(total: dict[str, int], more: dict[str, int]) -> None:
    for name, value in more.items():
        total[name] = total.get(name, 0) + value
