"""Label selectors of Kubernetes. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def matches(selector: Mapping[str, Any] | None, labels: Mapping[str, str] | None) -> bool:
    """A metav1.LabelSelector. None selects nothing, an empty one everything."""
    if selector is None:
        return False
    have = labels or {}
    if any(have.get(k) != v for k, v in (selector.get("matchLabels") or {}).items()):
        return False
    return all(holds(e, have) for e in selector.get("matchExpressions") or [])


def holds(expression: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """One requirement of a label or node selector. An unknown operator holds for nothing."""
    key, values = expression.get("key", ""), expression.get("values") or []
    match expression.get("operator"):
        case "In":
            return labels.get(key) in values
        case "NotIn":
            return labels.get(key) not in values
        case "Exists":
            return key in labels
        case "DoesNotExist":
            return key not in labels
        case "Gt" | "Lt" as operator:
            try:
                have, want = int(labels[key]), int(values[0])
            except (KeyError, ValueError, IndexError):
                return False
            return have > want if operator == "Gt" else have < want
    return False
