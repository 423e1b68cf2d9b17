"""Seeds in groups, so that each group is one test and `--seeds N` asks for more of them.

The options themselves are in tests/conftest.py: pytest reads options only from where a run starts.
"""

from __future__ import annotations

import pytest

DEFAULT_SEEDS = 2000
GROUP = 100


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "seeds" in metafunc.fixturenames:
        total = metafunc.config.getoption("--seeds") or DEFAULT_SEEDS
        groups = [range(first, min(first + GROUP, total)) for first in range(0, total, GROUP)]
        metafunc.parametrize("seeds", groups, ids=[f"{g.start}-{g.stop - 1}" for g in groups])
    if "replayed" in metafunc.fixturenames:
        seed = metafunc.config.getoption("--seed")
        metafunc.parametrize("replayed", [] if seed is None else [seed])
