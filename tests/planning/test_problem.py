"""A problem is checked once, when it is made, and says what is wrong with it."""

from __future__ import annotations

import pytest

from dimorder.planning.problem import Buffer, Config, InvalidChoice, LayoutProblem, Step, evaluate, unit_gcd

SOURCE = Step("input", (), (0,), (Config((), ("A",), (0, 1)),))
SINK = Step("output", (0,), (), (Config(("A",), (), (0, 0)), Config(("B",), (), (2, 3))))
BUFFER = Buffer("x", (8, 1))
UNITS = ("bytes", "count")

WRONG = {
    "no unit": ((), (), (), "complete"),
    "units twice": (("bytes", "bytes"), (BUFFER,), (SOURCE, SINK), "complete"),
    "unknown candidates": (UNITS, (BUFFER,), (SOURCE, SINK), "some"),
    "short cost of a buffer": (UNITS, (Buffer("x", (8,)),), (SOURCE, SINK), "complete"),
    "negative cost": (UNITS, (Buffer("x", (8, -1)),), (SOURCE, SINK), "complete"),
    "short cost of a pair": (UNITS, (Buffer("x", (8, 1), {("A", "B"): (8,)}),), (SOURCE, SINK), "complete"),
    "an order converted to itself": (
        UNITS,
        (Buffer("x", (8, 1), {("A", "A"): (0, 0)}),),
        (SOURCE, SINK),
        "complete",
    ),
    "cost not an integer": (UNITS, (Buffer("x", (8, 0.5)),), (SOURCE, SINK), "complete"),
    "buffer never written": (UNITS, (BUFFER, BUFFER), (SOURCE, SINK), "complete"),
    "buffer written twice": (UNITS, (BUFFER,), (SOURCE, SOURCE), "complete"),
    "read before written": (UNITS, (BUFFER,), (SINK, SOURCE), "complete"),
    "no such buffer": (UNITS, (), (SOURCE,), "complete"),
    "no configuration": (UNITS, (BUFFER,), (SOURCE, Step("o", (0,), (), ())), "complete"),
    "reads not aligned": (
        UNITS,
        (BUFFER,),
        (SOURCE, Step("o", (0,), (), (Config((), (), (0, 0)),))),
        "complete",
    ),
    "writes not aligned": (
        UNITS,
        (BUFFER,),
        (SOURCE, Step("o", (0,), (), (Config(("A",), ("A",), (0, 0)),))),
        "complete",
    ),
    "long cost of a configuration": (
        UNITS,
        (BUFFER,),
        (SOURCE, Step("o", (0,), (), (Config(("A",), (), (0, 0, 0)),))),
        "complete",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_problem_is_refused_in_three_lines(name):
    with pytest.raises(ValueError) as caught:
        LayoutProblem(*WRONG[name])
    assert [line.split(":")[0].strip() for line in str(caught.value).splitlines()] == [
        "layout problem",
        "found",
        "to do",
    ]


def test_a_conversion_costs_its_price_and_names_its_ends():
    problem = LayoutProblem(UNITS, (BUFFER,), (SOURCE, SINK, SINK), "complete")
    evaluation = evaluate(problem, (0, 1, 1))
    assert evaluation.cost == (0 + 2 + 2 + 8, 1 + 3 + 3 + 1)
    (conversion,) = evaluation.conversions
    assert (conversion.name, conversion.from_order, conversion.to_order) == ("x", "A", "B")
    assert (conversion.producer, conversion.consumers) == (0, (1, 2))
    assert evaluate(problem, (0, 0, 0)).conversions == ()


def test_a_conversion_costs_what_its_pair_of_orders_costs():
    source = Step("input", (), (0,), (Config((), ("A",), (0, 0)), Config((), ("C",), (0, 0))))
    buffer = Buffer("x", (8, 1), {("A", "B"): (24, 2), ("B", "C"): (20, 0)})
    problem = LayoutProblem(UNITS, (buffer,), (source, SINK), "complete")
    assert evaluate(problem, (0, 1)).conversions[0].cost == (24, 2)
    assert evaluate(problem, (0, 1)).cost == (24 + 2, 2 + 3)
    assert evaluate(problem, (1, 1)).cost == (8 + 2, 1 + 3)
    assert unit_gcd(problem, 0) == 2  # of 2, 8, 20 and 24
    assert unit_gcd(LayoutProblem(UNITS, (buffer,), (source,), "complete"), 0) == 4


@pytest.mark.parametrize("choice", [(0,), (0, 0, 0), (0, 2), (0, -1)])
def test_a_choice_that_does_not_fit_is_refused(choice):
    problem = LayoutProblem(UNITS, (BUFFER,), (SOURCE, SINK), "complete")
    with pytest.raises(InvalidChoice, match="found:"):
        evaluate(problem, choice)


def test_a_conversion_not_offered_is_named():
    buffer = Buffer("x", (8, 1), {("A", "B"): None})
    problem = LayoutProblem(UNITS, (buffer,), (SOURCE, SINK), "complete")
    assert evaluate(problem, (0, 0)).cost == (0, 1)
    with pytest.raises(InvalidChoice, match="A -> B is not offered"):
        evaluate(problem, (0, 1))
