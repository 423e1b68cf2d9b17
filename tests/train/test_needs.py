"""A torch that the library cannot work with is refused by name; it would hang in its first collective."""

from __future__ import annotations

import pytest

from onward.errors import UsageError
from onward.train import needs


@pytest.mark.parametrize("version", ["2.7.1+cu126", "2.7.0a0+git123", "2.13.0", "2.10", "3.0.0", "local-build"])
def test_good_enough(version: str) -> None:
    assert not needs.too_old(version)


@pytest.mark.parametrize("version", ["2.6.0+cu124", "1.13.1", "2.1.0.post12"])
def test_too_old(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(needs.torch, "__version__", version)
    with pytest.raises(UsageError, match=r"too old for onward's library, which needs 2\.7 or newer: install that"):
        needs.check()
