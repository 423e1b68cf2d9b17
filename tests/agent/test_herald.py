"""What people are told about the job, and that it is true."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from onward.agent.herald import HINT, Herald
from onward.wire.messages import Orders


@pytest.mark.parametrize("library", [True, False])
def test_who_has_called_the_library_is_not_told_to(library: bool) -> None:
    """When all start again there is a moment in which nobody has called it yet."""
    told: list[str] = []
    logic, script = SimpleNamespace(attached=library), SimpleNamespace(blame_the_script=lambda attempt: False)
    herald = Herald(cast(Any, SimpleNamespace(note=told.append)), cast(Any, logic), cast(Any, None), cast(Any, script))
    for attempt, attached in ((0, library), (1, False), (1, False)):
        logic.attached = attached
        herald.say_what_is_missed(cast(Orders, SimpleNamespace(attempt=attempt)))
    assert told == ([] if library else [HINT])
