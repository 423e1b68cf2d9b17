"""How long the launcher waits for its manager's word."""

from __future__ import annotations

from onward.agent.helpers import LONGEST_START_S, STUCK_S, ManagerPatience


def test_on_a_machine_that_cannot_start_a_manager_in_time_the_next_is_given_more() -> None:
    patience, silent_s, waited = ManagerPatience(), 0.0, []
    for _ in range(8):
        alive_s = 0.0
        while not patience.ends(silent_s + alive_s, alive_s):
            alive_s += 1.0
        silent_s += alive_s
        waited.append(alive_s)
    assert waited[:4] == [STUCK_S * n + 1 for n in (1, 2, 4, 8)]
    assert waited[-1] == LONGEST_START_S + 1, "but not for ever"


def test_one_that_has_spoken_is_not_waited_for_so_long_again() -> None:
    patience = ManagerPatience()
    assert patience.ends(STUCK_S + 1, STUCK_S + 1)
    assert not patience.ends(2 * STUCK_S, STUCK_S + 1), "the next one has not spoken yet"
    assert not patience.ends(1.0, STUCK_S + 2), "now it has"
    assert patience.ends(STUCK_S + 1, 10 * STUCK_S), "and then hung"
    assert patience.ends(STUCK_S + 2, STUCK_S + 1), "which says nothing about how long the next needs to begin"
