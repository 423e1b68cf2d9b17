"""The table of resources, verbs and subresources, for docs/local-api.md.

    python -m onward.local.api.reference

A test compares the page with this, and another one walks through every row against a running server.
"""

from __future__ import annotations

from onward.local.api.discovery import UNSERVED, sub_verbs
from onward.local.api.registry import VERBS, Registry, Resource
from onward.local.api.server import IMPERSONATION, UNSERVED_PATHS
from onward.local.api.subresources import REASONS


def verbs(resource: Resource) -> str:
    if set(resource.verbs) == set(VERBS):
        return "all"
    if len(resource.verbs) > 4:
        return "all but " + ", ".join(sorted(set(VERBS) - set(resource.verbs)))
    return ", ".join(resource.verbs)


def acted_on(resource: Resource) -> str:
    if resource.verbs == ("create",):
        return "a question; nothing is stored"
    return f"stored only, with a warning: {resource.warning.split(':')[0]}" if resource.warning else ""


def rows(registry: Registry) -> list[str]:
    """Markdown, one row a resource."""
    lines = ["| resource | kind | verbs | subresources | note |", "|---|---|---|---|---|"]
    for each in registry.all():
        group = f"{each.group}/{each.version}" if each.group else each.version
        subs = [f"{sub} ({', '.join(sub_verbs(each, sub))})" for sub in each.subresources if sub not in UNSERVED]
        lines.append(f"| {each.plural} | {group} {each.kind} | {verbs(each)} | {'; '.join(subs)} | {acted_on(each)} |")
    return lines


def refused(registry: Registry) -> list[str]:
    """What a stock cluster has and this server answers 501 to."""
    lines = ["| path | why |", "|---|---|"]
    for each in registry.all():
        lines += [f"| {each.plural}/{sub} | {REASONS[sub]} |" for sub in each.subresources if sub in UNSERVED]
    lines += [f"| /{first} | {why} |" for first, why in UNSERVED_PATHS.items()]
    return [*lines, f"| any, with `--as` (`Impersonate-User` ...) | {IMPERSONATION} |"]


if __name__ == "__main__":
    known = Registry()
    print("\n".join([*rows(known), "", *refused(known)]))
