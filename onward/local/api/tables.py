"""Server-side tables: the columns kubectl prints."""

from __future__ import annotations

from typing import Any

from onward.local.api.clock import age
from onward.local.api.registry import Resource

Json = dict[str, Any]


def table(
    resource: Resource,
    bodies: list[Json],
    rv: int,
    *,
    include: str = "",
    headings: bool = True,
    token: str = "",
    remaining: int | None = None,
) -> Json:
    columns = [
        {"name": "Name", "type": "string", "format": "name", "description": "", "priority": 0},
        {"name": "Age", "type": "string", "format": "", "description": "", "priority": 0},
    ]
    rows = []
    for body in bodies:
        meta = body["metadata"]
        rows.append(
            {
                "cells": [meta["name"], age(meta.get("creationTimestamp"))],
                "object": {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": meta},
            }
        )
    return {
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": {"resourceVersion": str(rv)},
        "columnDefinitions": columns if headings else [],
        "rows": rows,
    }
