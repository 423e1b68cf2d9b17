"""`onward validate`: what is wrong with job files, with file and line, before anybody submits them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

import yaml

from onward.api import ascendjob, fields
from onward.api.crds import crds
from onward.api.job import Job, Problem
from onward.cli import yamlfiles
from onward.cli.objects import read_text

Place = tuple[str | int, ...]


@dataclass(frozen=True)
class Finding:
    """One line of the answer."""

    file: str
    line: int
    level: str  # problem, note or good
    reason: str
    message: str

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}"
        if self.level == "problem":
            return f"{where}: {self.reason}: {self.message}"
        return f"{where}: {'note: ' if self.level == 'note' else ''}{self.message}"


def validate(files: tuple[str, ...], output: str) -> int:
    """0: all of them are good. 1: some are not; every problem is printed."""
    findings = [finding for file in files for path in yamlfiles.paths(file) for finding in check_file(path)]
    problems = sum(finding.level == "problem" for finding in findings)
    if output == "json":
        print(json.dumps([asdict(finding) for finding in findings], indent=2))
    else:
        for finding in findings:
            print(finding)
        if problems:
            print(f"{problems} problem{'s' if problems > 1 else ''}")
    return 1 if problems else 0


def check_file(path: str) -> Iterator[Finding]:
    try:
        text = read_text(path)
        documents = list(yamlfiles.documents(text))
    except yamlfiles.UNREADABLE as e:
        yield Finding(path, 1, "problem", "Unreadable", yamlfiles.in_words(e))
        return
    except yamlfiles.MALFORMED as e:
        mark = getattr(e, "problem_mark", None)
        what = getattr(e, "problem", None) or yamlfiles.in_words(e)
        yield Finding(path, mark.line + 1 if mark else 1, "problem", "InvalidYAML", str(what))
        return
    if not documents:
        yield Finding(path, 1, "problem", "InvalidYAML", "there is no object in this file")
    for node, obj in documents:
        for level, problem in _sorted(node, _check(obj, node)):
            yield Finding(path, line_of(node, problem.path), level, problem.reason, problem.message)


def _sorted(node: yaml.Node, found: Iterator[tuple[str, Problem]]) -> list[tuple[str, Problem]]:
    return sorted(dict.fromkeys(found), key=lambda pair: line_of(node, pair[1].path))


@lru_cache(maxsize=1)
def _definitions() -> dict[tuple[str, str], dict[str, Any]]:
    """By group and kind."""
    return {(crd["spec"]["group"], crd["spec"]["names"]["kind"]): crd for crd in crds()}


def _check(obj: Any, node: yaml.Node) -> Iterator[tuple[str, Problem]]:
    if not isinstance(obj, dict) or not obj.get("kind") or not obj.get("apiVersion"):
        yield "problem", Problem("InvalidObject", "no object; apiVersion and kind are needed")
        return
    for path in _twice(node, ()):
        yield "problem", Problem("DuplicateField", f"{path[-1]} is written twice; only the last counts", path)
    known = _definitions()
    group, kind = str(obj["apiVersion"]).rpartition("/")[0], str(obj["kind"])
    crd = known.get((group, kind))
    if crd is None:
        kinds = ", ".join(sorted(name for _, name in known))
        yield "note", Problem("NotChecked", f"{kind} ({obj['apiVersion']}) is not checked; what is known: {kinds}")
        return
    wrong = fields.check(crd, obj)
    yield from (("problem", problem) for problem in wrong)
    yield from _unquoted(obj)
    if kind == ascendjob.KIND:
        yield from _job(obj, {problem.path for problem in wrong})
    elif group != "scheduling.volcano.sh":
        yield "note", Problem("NotRunYet", f"{kind}: its fields are checked; onward does not run it yet")


def _job(obj: dict[str, Any], told: set[Place]) -> Iterator[tuple[str, Problem]]:
    found = ascendjob.read(obj)
    if isinstance(found, Job):
        for note in found.notes:
            yield "note", Problem(note.reason, note.message, ("metadata",))
        if not told:
            devices = f" with {found.world_size} of {found.device[0]}" if found.device[1] else ""
            pods = f"{found.total} pod{'s' if found.total != 1 else ''}"
            yield "good", Problem("Good", f"{found.kind} {found.name} is good: {pods}{devices}")
        return
    yield from (("problem", problem) for problem in found if problem.path not in told)


def _unquoted(obj: dict[str, Any]) -> Iterator[tuple[str, Problem]]:
    metadata = obj.get("metadata")
    for kind in ("labels", "annotations"):
        given = metadata.get(kind) if isinstance(metadata, dict) else None
        for key, value in given.items() if isinstance(given, dict) else ():
            if not isinstance(value, str):
                what = f"{key} is not a text: kubectl refuses that (write it in quotes); onward apply adds the quotes"
                yield "note", Problem("Unquoted", what, ("metadata", kind, str(key)))


def _twice(node: yaml.Node, path: Place) -> Iterator[Place]:
    if isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for key, value in node.value:
            name = str(key.value)
            if name in seen:
                yield (*path, name)
            seen.add(name)
            yield from _twice(value, (*path, name))
    elif isinstance(node, yaml.SequenceNode):
        for i, each in enumerate(node.value):
            yield from _twice(each, (*path, i))


def line_of(node: yaml.Node, path: Place) -> int:
    """Of the field, or of the nearest one above it that is there."""
    line = node.start_mark.line + 1
    for word in path:
        below = _child(node, word)
        if below is None:
            break
        line, node = below
    return line


def _child(node: yaml.Node, word: str | int) -> tuple[int, yaml.Node] | None:
    if isinstance(node, yaml.MappingNode):
        for key, value in reversed(node.value):
            if str(key.value) == str(word):
                return key.start_mark.line + 1, value
    elif isinstance(node, yaml.SequenceNode) and isinstance(word, int) and word < len(node.value):
        return node.value[word].start_mark.line + 1, node.value[word]
    return None
