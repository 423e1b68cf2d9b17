"""Values of a parametrized test that are left to the long run."""

from __future__ import annotations

from typing import Any

import pytest


def nightly(*values: Any) -> list[Any]:
    """The same again, with these."""
    return [pytest.param(value, marks=pytest.mark.nightly) for value in values]
