"""Which tests are in the quick run: those marked `full` repeat them, of other numbers or another combination."""

import itertools

import pytest


def parts(number):
    """Of a test of random numbers. Its parts differ in nothing else, and the first one is quick.

    Hypothesis begins each part with the same simplest example: so its others are those that count.
    """
    return pytest.mark.parametrize("part", [0, *(repeated(part) for part in range(1, number))])


def diagonal(*lists):
    """All combinations of values. The quick ones step through all lists at once, so each value is in one of them.

    A list that begins again is shifted, each by another number, so that not always the same values meet. A value that
    is a tuple stands for several arguments.
    """
    steps = range(max(map(len, lists)))
    at = lambda step, n, values: (step + n * (step // len(values))) % len(values)
    quick = {tuple(at(step, n, values) for n, values in enumerate(lists)) for step in steps}
    places = itertools.product(*(range(len(values)) for values in lists))
    return [
        pytest.param(*values) if place in quick else repeated(*values)
        for place, values in zip(places, map(flat, itertools.product(*lists)), strict=True)
    ]


def in_turns(named, values):
    """`diagonal` of named tuples and values, by their names."""
    params = diagonal(list(named.values()), list(values))
    names = [f"{name}-{value}" for name, value in itertools.product(named, values)]
    return [pytest.param(*p.values, marks=p.marks, id=name) for p, name in zip(params, names, strict=True)]


def every_other(values):
    """The quick run has every second one of those that it had."""
    places = itertools.count()
    is_marked = lambda value: isinstance(value, type(pytest.param()))
    return [v if is_marked(v) or next(places) % 2 == 0 else repeated(*flat([v])) for v in values]


def flat(values):
    return [one for value in values for one in (value if isinstance(value, tuple) else (value,))]


def repeated(*values):
    return pytest.param(*values, marks=pytest.mark.full)


def name(value):
    """The id of a test's value: a function's name, or the value's text."""
    return getattr(value, "__name__", str(value))
