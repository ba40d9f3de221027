"""Errors at certain sizes are told in the network's or in torch's words."""

from __future__ import annotations

from typing import Any

import pytest

from dimorder.errors import UnsupportedError
from dimorder.sizes.point_errors import explained_at


class Accepting:
    """Sizes that every operator accepts."""

    def require(self, point: Any) -> None:
        pass


@pytest.mark.parametrize("kind", [AssertionError, RuntimeError])
def test_a_guard_of_torch_is_a_refusal(kind: type[Exception]) -> None:
    sizes: Any = Accepting()
    with pytest.raises(UnsupportedError) as refused, explained_at({"rows": 4}, sizes):
        raise kind("Guard failed: (1 + x.size()[3]) // 3 != 1\n\nWhile executing it")
    assert str(refused.value).splitlines()[1] == "  found: Guard failed: (1 + x.size()[3]) // 3 != 1"


def test_an_assertion_of_dimorder_is_none() -> None:
    sizes: Any = Accepting()
    with pytest.raises(AssertionError), explained_at({"rows": 4}, sizes):
        raise AssertionError("two nodes of one name")
