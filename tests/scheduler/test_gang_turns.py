"""Gangs: what is enough for one, whose turn it is, what queues allow, and that nobody starves."""

from __future__ import annotations

from shapes import gang, room, turns, wish

from onward.core.board import Board
from onward.core.gang import Gang, attempt
from onward.core.turns import Memory, Queue


def nodes(count: int, cpu: int = 8, **more: object) -> list:
    return [room(f"n{i}", cpu, **more) for i in range(count)]


# What is enough


def test_a_gang_that_waits_leaves_the_board_as_it_was() -> None:
    board = Board(nodes(2, 4))
    before = [list(spot.free) for spot in board]
    answer = attempt(board, gang("g", 9))
    assert (answer.reason, answer.could, answer.nodes) == ("NotEnoughResources", 8, {})
    assert answer.message == "0/2 nodes are available: 2 Insufficient cpu."
    assert [list(spot.free) for spot in board] == before
    assert len(attempt(board, gang("g", 8)).nodes) == 8


def test_a_minimum_below_the_number_of_pods() -> None:
    answer = attempt(Board(nodes(1, 4)), gang("g", 6, min_member=3))
    assert len(answer.nodes) == 4, "as many as fit"
    assert not answer.waits
    assert answer.left == {f"default/g-{i}": "0/1 nodes are available: 1 Insufficient cpu." for i in (4, 5)}


def test_a_minimum_for_each_task() -> None:
    def tasks(masters: int, workers: int) -> list:
        made = [wish(f"m{i}", 2, task="master") for i in range(masters)]
        return made + [wish(f"w{i}", task="worker") for i in range(workers)]

    minima = {"master": 1, "worker": 2}
    board = Board(nodes(1, 4))
    answer = attempt(board, Gang("default/g", tasks(1, 5), 3, minima))
    assert "default/m0" in answer.nodes, "workers do not take the master's place"
    assert len(answer.nodes) == 3
    answer = attempt(Board(nodes(5, 1)), Gang("default/g", tasks(1, 5), 3, minima))
    assert (answer.waits, answer.could, answer.nodes) == (True, 5, {}), "five workers without their master"
    answer = attempt(Board(nodes(4)), Gang("default/g", tasks(0, 5), 3, minima))
    assert (answer.reason, answer.message) == ("NotEnoughPodsOfTask", "0 of 1 pods of task master exist")
    answer = attempt(Board(nodes(1, 2)), Gang("default/g", tasks(0, 2), 2, minima))
    assert not answer.waits, "tasks that add up to more than the gang needs are free, as in Volcano"


def test_too_few_pods() -> None:
    answer = attempt(Board(nodes(4)), gang("g", 2, min_member=3))
    assert (answer.reason, answer.message) == ("NotEnoughTasks", "2 of 3 pods exist")
    assert attempt(Board(nodes(4)), gang("g", 2, min_member=3, held=1)).nodes


def test_a_gang_that_has_started_is_completed_pod_by_pod() -> None:
    answer = attempt(Board(nodes(1, 2)), gang("g", 3, min_member=8, held=5, started=True))
    assert (len(answer.nodes), len(answer.left)) == (2, 1)
    assert answer.reason == "NotEnoughResources"
    assert not attempt(Board(nodes(1, 4)), gang("g", 3, min_member=8, held=5, started=True)).waits


def test_large_and_small_pods_are_packed_when_spreading_them_does_not_do() -> None:
    pods = [wish("a", 5), wish("b", 4), wish("c", 4)]
    answer = attempt(Board([room("n1", 8), room("n2", 5)]), Gang("default/g", pods, 3))
    assert answer.nodes == {"default/a": "n2", "default/b": "n1", "default/c": "n1"}


def test_the_word_for_the_gang_counts_what_would_fit() -> None:
    rooms = [room("n1", gpus=2), room("n2", gpus=2, unschedulable=True), room("n3", 1, gpus=8)]
    answer = attempt(Board(rooms), gang("g", 4, cpu=2, pod={"requests": {"nvidia.com/gpu": 1}}))
    assert answer.could == 2
    assert answer.message == (
        "0/3 nodes are available: 1 Insufficient cpu, 1 Insufficient nvidia.com/gpu, 1 node(s) were unschedulable."
    )


# Whose turn it is


def test_priority_then_who_came_first() -> None:
    gangs = [gang("a-late", 4, created=2), gang("z-early", 4, created=1), gang("high", 4, created=3, priority=10)]
    found = turns(Board(nodes(1)), gangs)
    assert [name for name, outcome in found.items() if outcome.nodes] == ["high", "z-early"]
    assert list(found) == ["high", "z-early", "a-late"], "whatever they are called"


def test_small_gangs_pass_a_big_one_but_not_for_ever() -> None:
    board = Board(nodes(2))
    board.put(wish("running", 4), "n0")
    big, small = gang("big", 4, 4), gang("small", 2, created=1, since=1)
    assert turns(Board(nodes(2)), [big])["big"].nodes, "it would fit into an empty cluster"
    found = turns(board, [big, small], now=100, patience_s=120)
    assert found["big"].waits
    assert found["small"].nodes
    for wish_ in small.pending:
        board.drop(wish_.key)
    found = turns(board, [big, small], now=121, patience_s=120)
    assert found["small"].message == ('0/2 nodes are available: 2 node(s) were set aside for gang "default/big".')
    board.drop("default/running")
    found = turns(board, [big, small], now=122, patience_s=120)
    assert len(found["big"].nodes) == 4
    assert found["small"].waits


def test_who_is_not_held_back() -> None:
    board = Board([*nodes(1, 8, gpus=2), room("other", 8, labels={"pool": "cpu"}, unschedulable=True)])
    board.put(wish("running", 1, requests={"nvidia.com/gpu": 1}), "n0")
    big = gang("big", 2, 1, pod={"requests": {"nvidia.com/gpu": 1}})
    hurt = gang("hurt", 1, created=5, min_member=2, held=1, started=True, pod={"requests": {"nvidia.com/gpu": 1}})
    plain, high = gang("plain", 2, created=6), gang("high", 1, created=7, priority=1)
    found = turns(board, [big, hurt, plain, high], now=1000)
    assert found["big"].waits
    assert found["hurt"].nodes, "a gang that lost a pod is mended before anybody else starts"
    assert found["plain"].nodes, "it asks for nothing that the big one lacks"
    assert found["high"].nodes


def test_a_gang_that_lost_a_pod_is_mended_first_and_its_queue_does_not_hold_it_up() -> None:
    hurt = gang("hurt", 1, created=5, min_member=2, held=1, started=True, queue="full")
    full = Queue("full", capability={"cpu": 1000}, used={"cpu": 1000})
    found = turns(Board(nodes(1, 1)), [gang("early", 1, created=1, priority=9), hurt], full)
    assert found["hurt"].nodes
    assert found["early"].waits


def test_a_gang_that_can_never_fit_holds_nobody_back() -> None:
    for never in (gang("never", 100, 4), gang("never", 1, 64), gang("never", 1, pod={"selector": {"no": "where"}})):
        found = turns(Board(nodes(2)), [never, gang("small", 2, created=1)], now=1000)
        assert found["never"].waits
        assert found["small"].nodes


# Queues


def test_queues_by_weight() -> None:
    gangs = [gang(f"a{i}", 2, created=i, queue="a") for i in range(8)]
    gangs += [gang(f"b{i}", 2, created=10 + i, queue="b") for i in range(8)]
    found = turns(Board(nodes(2)), gangs, Queue("a", weight=3), Queue("b", weight=1))
    started = [name for name, outcome in found.items() if outcome.nodes]
    assert len(started) == 8
    assert sum(name.startswith("a") for name in started) == 6, "three quarters"


def test_a_queue_with_a_limit_holds_up_its_own_only() -> None:
    limited = Queue("a", capability={"cpu": 4000}, used={"cpu": 1000})
    gangs = [gang("a0", 4, queue="a"), gang("a1", 3, created=1, queue="a"), gang("b", 4, created=2)]
    found = turns(Board(nodes(2)), gangs, limited, now=1000)
    assert found["a0"].message == 'queue "a" may not use more cpu (its capability)'
    assert found["a1"].nodes
    assert found["b"].nodes
    assert limited.used["cpu"] == 4000


def test_no_queue_and_a_closed_one() -> None:
    gangs = [gang("lost", 1, queue="nowhere"), gang("shut", 1, queue="c")]
    found = turns(Board(nodes(1)), gangs, Queue("c", open=False))
    assert found["lost"].message == 'queue "nowhere" does not exist'
    assert found["shut"].message == 'queue "c" is closed'


# Not tried in vain


def test_what_did_not_fit_is_tried_again_when_something_was_given_back() -> None:
    board, memory = Board(nodes(1)), Memory()
    board.put(wish("running", 6), "n0")
    waiting = gang("g", 4)
    first = turns(board, [waiting], memory=memory)["g"]
    assert turns(board, [waiting], memory=memory)["g"] is first, "nothing has changed for it"
    board.put(wish("more", 1), "n0")
    assert turns(board, [waiting], memory=memory)["g"] is first, "less than before"
    assert turns(board, [gang("g", 4, 9)], memory=memory)["g"] is not first, "it asks for something else"
    assert turns(board, [waiting], memory=memory)["g"].waits
    board.drop("default/running")
    assert turns(board, [waiting], memory=memory)["g"].nodes


def test_the_board_follows_nodes() -> None:
    board = Board(nodes(1, 4))
    board.put(wish("ahead", 2), "n1")
    assert board.holds("default/ahead") == "n1", "its node is not known yet"
    board.add(room("n1", 4))
    assert len(attempt(board, gang("g", 6)).nodes) == 6
    board.remove("n0")
    assert [spot.name for spot in board] == ["n1"]
    gains = board.gains
    board.add(room("n1", 4))
    assert board.gains == gains, "the same as before"
    board.add(room("n1", 4, labels={"new": "label"}))
    assert board.gains > gains
    assert {wish_.key for wish_ in board.spots["n1"].residents.values()} >= {"default/ahead"}
