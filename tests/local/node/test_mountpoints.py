"""Places where volumes are mounted: made while somebody on this machine needs them, whichever cluster that is."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from onward.local import plan as plans
from onward.local.node.mountpoints import MountPoints
from onward.local.shim import cgroups, linux, spawn


class Machine:
    def __init__(self, place: Path) -> None:
        self.root, self.table = place / "root", place / "var" / "lib" / "onward"
        self.job = str(self.root / "job" / "code")
        self.root.mkdir()
        self._place = place

    def cluster(self, name: str) -> MountPoints:
        state = self._place / name
        state.mkdir()
        (state / plans.FILE).write_text("{}")
        return MountPoints(state, self.table)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_what_another_cluster_needs_stays(machine: Machine) -> None:
    one, two = machine.cluster("one"), machine.cluster("two")
    one.need(machine.job, False, "a")
    two.need(machine.job, False, "b")
    one.release("a")
    one.release_all()
    assert os.path.isdir(machine.job)
    two.release("b")
    assert list(machine.root.iterdir()) == []
    assert not machine.table.exists()


def test_two_ways_to_a_place_lead_to_one_place(machine: Machine) -> None:
    """As /var/run/secrets and /run/secrets, where every pod has its token."""
    (machine.root / "run").mkdir()
    (machine.root / "var").symlink_to("run")
    one = machine.cluster("one")
    one.need(str(machine.root / "var" / "secrets"), False, "a")
    one.need(str(machine.root / "run" / "secrets"), False, "b")
    one.release("a")
    assert os.path.isdir(machine.root / "run" / "secrets"), "b still needs it"
    one.release("b")
    assert list((machine.root / "run").iterdir()) == []


def test_what_was_there_or_is_used_by_others_stays(machine: Machine) -> None:
    one = machine.cluster("one")
    (machine.root / "data").mkdir()
    one.need(str(machine.root / "data"), False, "a")
    one.need(machine.job, False, "a")
    one.need(str(machine.root / "file"), True, "a")
    (machine.root / "job" / "mine").touch()
    one.release_all()
    assert sorted(p.name for p in machine.root.rglob("*")) == ["data", "job", "mine"]


def test_a_cluster_that_was_removed_by_hand_needs_nothing(machine: Machine, tmp_path: Path) -> None:
    machine.cluster("one").need(machine.job, False, "a")
    two = machine.cluster("two")
    two.need(machine.job, False, "b")
    (tmp_path / "one" / plans.FILE).unlink()
    two.release("b")
    assert list(machine.root.iterdir()) == []


def test_what_could_not_be_made_whole_is_taken_away(machine: Machine) -> None:
    one = machine.cluster("one")
    name_too_long = "x" * 300
    with pytest.raises(OSError, match=name_too_long):
        one.need(f"{machine.job}/{name_too_long}", False, "a")
    assert os.path.isdir(machine.job)
    one.release("a")
    assert list(machine.root.iterdir()) == []


def test_a_table_that_is_damaged_holds_nobody_up(machine: Machine) -> None:
    one = machine.cluster("one")
    machine.table.mkdir(parents=True)
    (machine.table / "mountpoints.json").touch()
    one.need(machine.job, False, "a")
    one.release_all()
    assert not machine.table.exists()


def _why_not(**spec: object) -> str:
    with pytest.raises(spawn.StartError) as e, open(os.devnull, "wb") as null:
        spawn.start({"argv": ["true"], "env": {}, **spec}, cgroups.Group(), (null.fileno(),) * 3)
    return str(e.value)


def test_a_container_that_cannot_start_says_what_is_missing(tmp_path: Path) -> None:
    assert _why_not(argv=["nope"]) == 'exec: "nope": executable file not found in $PATH'
    assert _why_not(argv=["/no/pe"]) == 'exec: "/no/pe": no such file or directory'
    assert _why_not(cwd="/no/where") == "working directory /no/where: No such file or directory"
    if linux.may_mount():
        mount = {"source": "/tmp", "target": str(tmp_path / "gone")}
        assert _why_not(mounts=[mount]) == f"mount /tmp at {mount['target']}: No such file or directory"
