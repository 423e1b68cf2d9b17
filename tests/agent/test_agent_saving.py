"""When an agent writes, and when it publishes."""

from __future__ import annotations

from onward.agent.saving import DropPart, PublishCheckpoint, Saving, WriteCheckpoint
from onward.core.checkpoints import Grant, SavedFile
from onward.wire.messages import Copied, Orders, RankOrder, Save

FILES = (SavedFile("shared.safetensors", 8, "x"),)


def orders(generation: int = 1, save: Save | None = None, publish: Grant | None = None, saver: int = -1) -> Orders:
    ranks = [
        RankOrder(rank=r, incarnation=1, generation=generation, want="save" if r == saver else "pause") for r in (0, 1)
    ]
    return Orders(term=1, version=1, generation=generation, ranks=ranks, save=save, publish=publish)


def copied(step: int, generation: int = 1, shared: bool = False) -> Copied:
    return Copied(step=step, generation=generation, shared=shared)


def written(s: Saving, step: int = 10, generation: int = 1) -> WriteCheckpoint:
    assert not s.on_copied(1, copied(step, generation), orders(generation))
    (effect,) = s.on_copied(0, copied(step, generation, shared=True), orders(generation))
    assert isinstance(effect, WriteCheckpoint)
    return effect


def test_it_is_written_when_all_ranks_have_copied_and_published_when_it_is_granted() -> None:
    s = Saving((0, 1))
    effect = written(s)
    assert (effect.step, effect.shared, effect.ranks, effect.save) == (10, True, (0, 1), None)
    assert s.under_way(publishes=True)
    assert s.on_written(effect, FILES, "") == []
    assert [p.step for p in s.parts] == [10]
    grant = Grant(0, 10, 1, FILES)
    (publish,) = s.on_orders(orders(publish=grant))
    assert isinstance(publish, PublishCheckpoint)
    assert s.on_orders(orders(publish=grant)) == [], "once"
    assert s.on_published(grant, "") == []
    assert (s.published, s.parts, s.under_way(publishes=True)) == ((10,), (), False)


def test_copies_of_another_generation_do_not_count() -> None:
    s = Saving((0, 1))
    assert s.on_copied(0, copied(10, generation=1, shared=True), orders(2)) == []
    assert s.on_copied(0, copied(10, generation=2, shared=True), orders(2)) == []
    assert s.on_copied(1, copied(12, generation=2), orders(2)) == [], "nor do those of another step"


def test_a_part_is_dropped_with_its_generation() -> None:
    s = Saving((0, 1))
    s.on_written(written(s), FILES, "")
    assert s.on_orders(orders(2)) == [DropPart(10, 1)]
    assert s.parts == ()
    assert s.on_orders(orders(2, publish=Grant(0, 10, 1, FILES))) == [], "an old generation publishes nothing"


def test_the_next_part_replaces_the_last_unless_that_is_being_published() -> None:
    s = Saving((0, 1))
    s.on_written(written(s, 10), FILES, "")
    assert s.on_written(written(s, 20), FILES, "") == [DropPart(10, 1)]
    s.on_orders(orders(publish=Grant(0, 20, 1, FILES)))
    assert s.on_written(written(s, 30), FILES, "") == []


def test_what_could_not_be_written_is_dropped_and_is_no_error_of_the_job() -> None:
    s = Saving((0, 1))
    assert s.on_written(written(s), (), "No space left on device") == [DropPart(10, 1)]
    assert (s.error, s.parts) == ("", ())
    assert written(s, 20)


def test_from_the_fence_one_copy_is_enough() -> None:
    s = Saving((0, 1))
    save = Save(step=16, disk=True, again=False, reason="dump")
    assert s.on_orders(orders(2, save, saver=1)) == []
    (effect,) = s.on_copied(1, copied(16, 2, shared=True), orders(2, save, saver=1))
    assert isinstance(effect, WriteCheckpoint)
    assert (effect.save, effect.shared) == (save, True)
    assert s.on_orders(orders(2, save)) == [], "the saver may die now: it is being written"
    s.on_written(effect, (), "No space left on device")
    assert s.error == "No space left on device", "somebody waits for this one"
    s.on_orders(orders(3))
    assert s.error == ""


def test_a_node_without_a_living_copy_keeps_what_its_ranks_had_published() -> None:
    s = Saving((0, 1))
    save = Save(step=16, disk=True, again=False, reason="dump")
    (effect,) = s.on_orders(orders(2, save))
    assert isinstance(effect, WriteCheckpoint)
    assert not effect.shared
