"""Replays a transcript: requests and what must come back, as data, against any API server.

A step names a method and a path, maybe a body, and what is expected: the code, chosen fields (`has`), events (WATCH).
`${name}` stands for what an earlier step kept (`set`); `eventually` repeats a GET until it fits, for a while; `ours`
marks what only onward's server promises, with the reason, and is left out against a real one; `needs: cel` where
the optional CEL library is not installed, `needs: controllers` against a bare kube-apiserver.
"""

from __future__ import annotations

import http.client
import importlib.util
import json
import re
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from waiting import within

Json = dict[str, Any]
METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "WATCH")
TYPES = {
    "merge": "application/merge-patch+json",
    "json": "application/json-patch+json",
    "strategic": "application/strategic-merge-patch+json",
    "apply": "application/apply-patch+yaml",
}
PATIENCE_S = 60.0


@dataclass
class Server:
    """Where to send requests to."""

    host: str
    port: int
    context: ssl.SSLContext
    token: str = ""
    ours: bool = True
    controllers: bool = True
    alone: bool = False
    """Started for this test, with no controllers but those that our server has too: its answers can be recorded."""
    kept: http.client.HTTPSConnection | None = None

    def ask(
        self, method: str, path: str, body: bytes | None, headers: dict[str, str]
    ) -> tuple[int, bytes, http.client.HTTPMessage]:
        """One request, on a connection that is kept."""
        if self.kept is None:
            self.kept = http.client.HTTPSConnection(self.host, self.port, timeout=30, context=self.context)
        try:
            known = {"Authorization": f"Bearer {self.token}"} if self.token else {}
            self.kept.request(method, path, body, {**known, **headers})
            response = self.kept.getresponse()
            return response.status, response.read(), response.headers
        except (OSError, http.client.HTTPException):
            self.kept.close()
            self.kept = None
            raise


def look_up(value: Any, path: str) -> Any:
    """`a.b[0].c`; a name with dots is written `a.'b.c'`. None where there is nothing."""
    for name, quoted, index in re.findall(r"([^.\[\]']+)|'([^']+)'|\[(-?\d+)\]", path):
        if index:
            value = value[int(index)] if isinstance(value, list) and -len(value) <= int(index) < len(value) else None
        else:
            value = value.get(name or quoted) if isinstance(value, dict) else None
    return value


def fits(wanted: Any, found: Any) -> bool:
    if wanted == "*":
        return found is not None
    if isinstance(wanted, str) and wanted.startswith("~"):
        return isinstance(found, str) and wanted[1:] in found
    if isinstance(wanted, str) and wanted.startswith("#"):
        return isinstance(found, (list, dict)) and len(found) == int(wanted[1:])
    return bool(wanted == found)


class Replay:
    """One transcript, with what its steps have kept."""

    def __init__(self, server: Server, names: dict[str, str]) -> None:
        self.server, self.kept = server, dict(names)
        self.differences: list[str] = []
        self.answers: list[Json] = []
        """What came back, step by step; `{"it": ...}` alone for steps that were left out."""
        self.missing = set() if server.controllers else {"controllers"}
        if server.ours and importlib.util.find_spec("cel") is None:
            self.missing.add("cel")

    def _fill(self, value: Any) -> Any:
        if isinstance(value, str):
            whole = re.fullmatch(r"\$\{(\w+)\}", value)
            if whole:
                return self.kept[whole[1]]
            return re.sub(r"\$\{(\w+)\}", lambda match: str(self.kept[match[1]]), value)
        if isinstance(value, dict):
            return {self._fill(key): self._fill(each) for key, each in value.items()}
        if isinstance(value, list):
            return [self._fill(each) for each in value]
        return value

    def run(self, file: Path) -> list[str]:
        """The differences between what the file says and what the server did."""
        for number, step in enumerate(yaml.load(file.read_text(encoding="utf-8"), Loader=yaml.CSafeLoader), 1):
            self.answers.append({"it": step["it"]})
            if (not self.server.ours and "ours" in step) or step.get("needs") in self.missing:
                continue
            problem = self._step(step)
            if problem:
                self.differences.append(f"{file.name} step {number} ({step['it']}): {problem}")
        return self.differences

    def _step(self, step: Json) -> str:
        method = next(each for each in METHODS if each in step)
        problem = ""

        def right() -> bool:
            nonlocal problem
            problem = self._once(step, method)
            return not problem

        within(PATIENCE_S if step.get("eventually") else 0.0, right)
        return problem

    def _once(self, step: Json, method: str) -> str:
        path, headers = self._fill(step[method]), dict(self._fill(step.get("headers", {})))
        body = None
        if "raw" in step:
            body = str(step["raw"]).encode()
        elif "body" in step:
            body = json.dumps(self._fill(step["body"])).encode()
        if body is not None:
            kind = step.get("type", "application/json")
            headers.setdefault("Content-Type", TYPES.get(kind, kind))
        if method == "WATCH":
            path += ("&" if "?" in path else "?") + "watch=true&timeoutSeconds=1"
        code, data, answered = self.server.ask("GET" if method == "WATCH" else method, path, body, headers)
        if method == "WATCH" and code == 200:
            found: Any = [json.loads(line) for line in data.splitlines() if line]
        else:
            found = json.loads(data) if data.startswith((b"{", b"[")) else data.decode(errors="replace")
        warned = answered.get_all("Warning") or []
        self.answers[-1] = {"it": step["it"], "code": code, "body": found, "warnings": warned}
        if code != step.get("code", 201 if method == "POST" else 200):
            return f"answered {code}: {data[:600].decode(errors='replace')}"
        if method == "WATCH" and code == 200:
            return self._events(step, found)
        return self._compare(step, found, answered)

    def _compare(self, step: Json, found: Any, answered: http.client.HTTPMessage) -> str:
        for path, wanted in self._fill(step.get("has", {})).items():
            there = look_up(found, path)
            if not fits(wanted, there):
                return f"{path} is {there!r}, not {wanted!r}; message: {look_up(found, 'message')!r}"
        for path in step.get("without", ()):
            if look_up(found, path) is not None:
                return f"{path} should not be there, but is {look_up(found, path)!r}"
        if "names" in step:
            names = [each["metadata"]["name"] for each in found.get("items", ())]
            if names != self._fill(step["names"]):
                return f"lists {names}"
        if "warns" in step and not any(step["warns"] in each for each in answered.get_all("Warning") or ()):
            return f"warns {answered.get_all('Warning')}"
        for name, path in step.get("set", {}).items():
            self.kept[name] = look_up(found, path)
        return ""

    def _events(self, step: Json, events: list[Json]) -> str:
        shown = []
        for each in events:
            meta = each["object"].get("metadata", {})
            shown.append(f"{each['type']} {meta.get('name') or each['object'].get('code', '')}".strip())
        wanted = step.get("events", [])
        return "" if shown == wanted else f"watch shows {shown}, not {wanted}"
