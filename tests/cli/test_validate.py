"""`onward validate`: file and line of every problem, slips of the pen, and no file that makes it stumble."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from onward.cli.main import main
from onward.cli.validating import check_file

EXAMPLES = Path(__file__).parents[2] / "examples"
GOOD = """\
apiVersion: mindxdl.gitee.com/v1
kind: AscendJob
metadata:
  name: gpt
  labels: {framework: pytorch}
spec:
  replicaSpecs:
    Master:
      template:
        spec:
          containers:
          - name: ascend
            image: any
"""


def said(tmp_path: Path, text: str) -> list[str]:
    """Each finding as LINE: TEXT."""
    file = tmp_path / "job.yaml"
    file.write_text(text)
    return [str(finding).removeprefix(f"{file}:") for finding in check_file(str(file))]


def test_a_good_job(tmp_path: Path) -> None:
    assert said(tmp_path, GOOD) == ["1: AscendJob gpt is good: 1 pod"]


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("framework: pytorch", "framework: torch", "5: InvalidFramework: framework label<torch>"),
        ("spec:\n  replica", "spec:\n  runPolcy: {}\n  replica", 
         "7: UnknownField: there is no field spec.runPolcy; did you mean 'runPolicy'?"),
        ("image: any", "imag: any", "13: UnknownField: there is no field"),
        ("image: any", "image: any\n            evn: []", "14: UnknownField: there is no field"),
        ("image: any", "image: any\n            ports: [{containerPor: 1}]", "14: UnknownField: there is no field"),
        ("      template:", "      replicas: two\n      template:",
         "9: InvalidType: spec.replicaSpecs.Master.replicas must be a whole number"),
        ("      template:", "      replicas: 1\n      replicas: 1\n      template:",
         "10: DuplicateField: replicas is written twice"),
        ("Master", "Mastr", "8: InvalidReplicaType: replicaType 'Mastr' is not one of Master, Worker; did you mean"),
        ("name: ascend", "name: main", "11: InvalidContainer"),
        ("name: gpt", "name: gpt\n  annotations: {recover-strategy: retri}",
         "5: InvalidRecoverStrategy: unknown policy 'retri'"),
        ("{framework: pytorch}", "{framework: pytorch, fault-retry-times: 3}",
         "5: note: fault-retry-times is not a text"),
        ("spec:\n  replica", "spec:\n  schedulerName: mine\n  replica", "3: note: pods are placed by mine"),
        ("kind: AscendJob", "kind: AscendJo", "1: note: AscendJo (mindxdl.gitee.com/v1) is not checked"),
        ("kind: AscendJob\n", "", "1: InvalidObject: no object"),
        ("metadata:", "metadata: [", "5: InvalidYAML"),
        ("image: any", "image: 2024-13-13", "1: AscendJob gpt is good"),  # a text, as in Kubernetes
    ],
)  # fmt: skip
def test_what_is_said_and_where(tmp_path: Path, old: str, new: str, expected: str) -> None:
    assert old in GOOD
    found = said(tmp_path, GOOD.replace(old, new, 1))
    assert any(line.startswith(expected) for line in found), found


def test_a_field_of_the_future_is_no_slip(tmp_path: Path) -> None:
    text = GOOD + "            quantumState: {up: 1}\n          entirelyNew: true\n"
    assert said(tmp_path, text) == ["1: AscendJob gpt is good: 1 pod"]


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", str(EXAMPLES / "ascendjob-gpt.yaml"), str(EXAMPLES / "seeds")]) == 0
    assert "AscendJob default-test-pytorch is good: 2 pods with 4 of huawei.com/Ascend910" in capsys.readouterr().out
    bad = tmp_path / "bad.yaml"
    bad.write_text(GOOD.replace("pytorch", "x") + "---\n" + GOOD.replace("image: any", "image: ''"))
    assert main(["validate", "-o", "json", str(bad), str(tmp_path / "missing.yaml")]) == 1
    found = [(f["line"], f["reason"]) for f in json.loads(capsys.readouterr().out)]
    assert found == [(5, "InvalidFramework"), (26, "InvalidContainer"), (1, "Unreadable")]


def test_a_file_that_is_not_there_may_have_been_meant_otherwise(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(GOOD)
    (typo,), (lost,) = (list(check_file(str(tmp_path / name))) for name in ("jbo.yaml", "there/job.yaml"))
    assert typo.message == f"there is no such file; did you mean {tmp_path}/job.yaml?"
    assert lost.message == f"there is no such file; there is no directory {tmp_path}/there"
    (tmp_path / "job.yaml").write_bytes(b"kind: \xff")
    assert "it is not a text in UTF-8" in next(check_file(str(tmp_path / "job.yaml"))).message


def test_aliases_that_grow_without_end(tmp_path: Path) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9)]
    assert "too large" in said(tmp_path, "\n".join(lines))[0]
    assert "too large" in said(tmp_path, "a: &a [*a]")[0]


fragments = st.sampled_from(
    [*GOOD.splitlines(True), "  - x: [1, {a: b}]\n", "? [a]\n: 1\n", "1: 2\n", "a: &x 1\n", "b: *x\n"]
)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(fragments, max_size=14), st.text(max_size=20))
def test_any_file_is_answered(tmp_path: Path, lines: list[str], more: str) -> None:
    file = tmp_path / "any.yaml"
    file.write_bytes(("".join(lines) + more).encode(errors="surrogatepass"))
    assert all(finding.line >= 1 and finding.message for finding in check_file(str(file)))
