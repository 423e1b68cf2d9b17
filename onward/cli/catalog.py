"""What a server serves: finding the resource that somebody means by `po`, `pods`, `Pod` or `acjob`."""

from __future__ import annotations

from dataclasses import dataclass

from onward.core.policy import closest
from onward.errors import UsageError
from onward.kube.client import ApiError, Client
from onward.kube.objects import Obj, Resource


@dataclass(frozen=True)
class Entry:
    resource: Resource
    names: frozenset[str]  # all in lower case


class Catalog:
    def __init__(self, entries: list[Entry]) -> None:
        self._entries = entries

    @classmethod
    async def read(cls, client: Client) -> Catalog:
        groups = ["v1"]
        for group in (await client.request("GET", "/apis")).get("groups") or []:
            groups.append(group["preferredVersion"]["groupVersion"])
        entries: list[Entry] = []
        for group_version in groups:
            path = "/api/v1" if group_version == "v1" else f"/apis/{group_version}"
            try:
                listed = await client.request("GET", path)
            except ApiError:
                continue  # a group whose server is down hides only itself
            group, _, version = group_version.rpartition("/")
            for each in listed.get("resources") or []:
                if "/" not in each["name"]:
                    entries.append(_entry(group, version, each))
        return cls(entries)

    def find(self, word: str) -> Resource:
        name, _, group = word.lower().partition(".")
        found = [e.resource for e in self._entries if name in e.names]
        if group:
            found = [r for r in found if r.group == group or f"{r.version}.{r.group}" == group]
        if found:
            return found[0]
        every = [name for e in self._entries for name in e.names]
        meant = closest(name, every)
        raise UsageError(f"the server has no {word!r}" + (f"; did you mean {meant}?" if meant else ""))

    def of(self, obj: Obj) -> Resource:
        """For an object from a file. A version that is not the preferred one is served too."""
        api_version, kind = str(obj.get("apiVersion") or ""), str(obj.get("kind") or "")
        group, _, version = api_version.rpartition("/")
        for entry in self._entries:
            r = entry.resource
            if (r.group, r.kind) == (group, kind):
                return Resource(group, version, r.plural, kind, r.namespaced)
        raise UsageError(f"the server does not know kind {kind!r} of {api_version!r}; is its CRD installed?")


def _entry(group: str, version: str, each: Obj) -> Entry:
    resource = Resource(group, version, each["name"], each["kind"], bool(each.get("namespaced")))
    names = {each["name"], each.get("singularName") or each["kind"], each["kind"], *(each.get("shortNames") or [])}
    return Entry(resource, frozenset(name.lower() for name in names if name))
