"""ExecuTorch's operator tests in C++: from files whose freed memory is poisoned, none is wrong or crashes."""

from __future__ import annotations

import pytest

pytest.importorskip("executorch")

from tests.device import emulation
from tests.suite.cases import collect
from tests.suite.outcomes import CRASHED, IN_CPP, REFUSED, RIGHT, WRONG, examine_all

EVERY = 40  # cases, of which one is run here; all are slow
REFUSED_ALL = 2  # of all cases: what target xnnpack refuses (tests/suite/test_suite.py)


@pytest.mark.parametrize(
    ("every", "least"), [(EVERY, 15), pytest.param(1, 800, marks=pytest.mark.slow)], ids=["some", "all"]
)
def test_executorchs_operator_tests_are_right_in_cpp(every: int, least: int) -> None:
    if reason := emulation.missing(emulation.HOST):
        pytest.skip(reason)
    emulation.built()
    cases = list(collect("executorch"))[::every]
    became = {str(case): found for case, _, found, _ in examine_all(cases, [IN_CPP])}
    bad = {name: found.why for name, found in became.items() if found.kind in (WRONG, CRASHED)}
    assert bad == {}
    assert sum(found.kind == REFUSED for found in became.values()) <= REFUSED_ALL
    assert sum(found.kind == RIGHT for found in became.values()) >= least
