"""What a real kube-apiserver answered to every step of the transcript, and how another server's answers differ.

Answers are kept as one line of JSON per step (`recorded/*.jsonl`), with what differs between any two runs (names of
namespaces, uids, versions, times, addresses) replaced. `differences.yaml` lists the differences that are meant, each
with its reason; any other one is a defect of our server.
"""

from __future__ import annotations

import fnmatch
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

Json = dict[str, Any]
HERE = Path(__file__).parent
MISSING = "(nothing)"
RULES = [
    (re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"), "<uid>"),
    (re.compile(r"\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+Z"), "<micro time>"),
    (re.compile(r"\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ"), "<time>"),
    (re.compile(r"\b10\.96\.\d+\.\d+"), "<address>"),
    (re.compile(r"\bBad_\w{5}\b"), "Bad_<random>"),
    (re.compile(r"\bkube-api-access-\w{5}\b"), "kube-api-access-<random>"),
    (re.compile(r"-----BEGIN CERTIFICATE-----.*", re.DOTALL), "<certificates>"),
    (re.compile(r"\beyJ[\w-]+\.[\w-]+\.[\w-]+"), "<token>"),
    (re.compile(r"(resource version: |current: |object meta: )\d+( \(\d+\))?"), r"\1<version>"),
    (re.compile(r'(resourceVersion\\*":\\*")\d+'), r"\1<version>"),
    (re.compile(r"\b(precondition|record) \(\d+\)"), r"\1 (<version>)"),
]
OWNER = ("operation", "manager", "subresource", "apiVersion")
AGE = re.compile(r"<unknown>|\d+[smhd](\d+[smhd])?")


def plain(value: Any, names: dict[str, Any]) -> Any:
    """An answer without what is different in every run."""
    if isinstance(value, dict):
        found = {plain(key, names): plain(each, names) for key, each in value.items()}
        for key, shown in (
            ("resourceVersion", "<version>"),
            ("continue", "<continue>"),
            ("description", "<text>"),
            ("serverAddress", "<address>"),
        ):
            if isinstance(found.get(key), str) and found[key]:
                found[key] = shown
        prefix = found.get("generateName")
        if isinstance(prefix, str) and str(found.get("name", "")).startswith(prefix):
            found["name"] = prefix + "<random>"
        if isinstance(found.get("managedFields"), list):  # those of one second are in no order
            found["managedFields"].sort(key=lambda each: json.dumps([each.get(key) for key in OWNER]))
        if isinstance(found.get("details"), dict) and "causes" in found["details"]:
            _sort_causes(found)
        found.pop("storageVersionHash", None)
        if "cells" in found and isinstance(found["cells"], list):
            found["cells"] = ["<age>" if AGE.fullmatch(str(each)) else each for each in found["cells"]]
        return found
    if isinstance(value, list):
        return [plain(each, names) for each in value]
    if isinstance(value, str):
        value = value.replace(str(names["ns"]), "NAMESPACE")
        for pattern, shown in RULES:
            value = pattern.sub(shown, value)
    return value


def _sort_causes(status: Json) -> None:
    """Problems of an object come in no order; what is said in all is said of each, too."""
    causes = sorted(status["details"]["causes"], key=lambda each: (each.get("field", ""), each["message"]))
    status["details"]["causes"] = causes
    if status["reason"] != "Invalid":
        return
    texts = {f"{each['field']}: {each['message']}" for each in causes}
    start, _, rest = status["message"].partition(" is invalid: ")
    whole = rest[1:-1] if rest.startswith("[") and len(texts) > 1 else rest
    if len(whole) == sum(map(len, texts)) + 2 * (len(texts) - 1) and all(each in whole for each in texts):
        status["message"] = f"{start} is invalid: (its causes)"


def compare(found: Any, wanted: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """(path, ours, the real one's) of everything that is not the same."""
    if isinstance(found, dict) and isinstance(wanted, dict):
        for key in sorted({*found, *wanted}):
            name = f"'{key}'" if "." in key else key
            where = f"{path}.{name}" if path else name
            yield from compare(found.get(key, MISSING), wanted.get(key, MISSING), where)
    elif isinstance(found, list) and isinstance(wanted, list):
        ours, theirs = _named(found), _named(wanted)
        if ours is not None and theirs is not None and ours.keys() != theirs.keys():
            for name in sorted({*ours, *theirs}):
                yield from compare(ours.get(name, MISSING), theirs.get(name, MISSING), f"{path}[{name}]")
            return
        for index in range(max(len(found), len(wanted))):
            pair = [each[index] if index < len(each) else MISSING for each in (found, wanted)]
            yield from compare(*pair, f"{path}[{index}]")
    elif found != wanted or isinstance(found, bool) != isinstance(wanted, bool):
        yield path, found, wanted


def _named(items: list[Any]) -> Json | None:
    """Lists of things with names are compared by them where not all are in both."""
    found: Json = {}
    for each in items:
        if not isinstance(each, dict):
            return None
        own = each.get("metadata") if isinstance(each.get("metadata"), dict) else each
        name = own.get("name", own.get("resource", own.get("subresource"))) if own else None
        if not isinstance(name, str) or name in found:
            return None
        found[name] = each
    return found


@dataclass
class Record:
    """The real answers to one transcript, and the differences from them that are meant."""

    file: Path
    answers: list[Json] = field(default_factory=list)
    meant: list[Json] = field(default_factory=list)
    used: set[int] = field(default_factory=set)

    def unexplained(self, number: int, answer: Json, names: dict[str, Any]) -> list[str]:
        wanted = self.answers[number - 1]
        shown = []
        for path, ours, real in compare({**plain(answer, names), "it": answer["it"]}, wanted):
            if not self._meant(answer["it"], path, ours, real):
                shown.append(f"  {path}: {json.dumps(ours)[:600]}\n    a real server: {json.dumps(real)[:600]}")
        return shown

    def _meant(self, step: str, path: str, ours: Any, real: Any) -> bool:
        found = False
        for index, each in enumerate(self.meant):
            texts = all(each.get(key, "") in json.dumps(value) for key, value in (("ours", ours), ("real", real)))
            if texts and fnmatch.fnmatchcase(step, each.get("step", "*")) and _covers(each["path"], path):
                self.used.add(index)
                found = True
        return found

    def stale(self) -> list[str]:
        """Explanations of differences that are no more."""
        return [str(each) for index, each in enumerate(self.meant) if index not in self.used and "file" in each]


def _covers(pattern: str, path: str) -> bool:
    """`*` is anything; a path covers what is below it."""
    parts = [re.escape(part) for part in pattern.split("*")]
    return re.fullmatch(".*".join(parts) + r"(?:[.\[].*)?", path) is not None


def load(stem: str) -> Record:
    file = HERE / "recorded" / f"{stem}.jsonl"
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    meant = yaml.safe_load((HERE / "differences.yaml").read_text(encoding="utf-8")) or []
    mine = [each for each in meant if each.get("file", stem) == stem]
    return Record(file, [json.loads(line) for line in lines], mine)


def save(record: Record, answers: list[Json], names: dict[str, Any]) -> None:
    record.file.parent.mkdir(exist_ok=True)
    lines = [json.dumps({**plain(each, names), "it": each["it"]}, sort_keys=True) for each in answers]
    record.file.write_text("\n".join(lines) + "\n", encoding="utf-8")
