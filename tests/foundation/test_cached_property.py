"""Properties computed once, also where threads ask together, and where a child asks its parent."""

from __future__ import annotations

import threading

from kcalc.foundation.process_state import cached_property


def test_properties_that_need_each_other_in_two_threads() -> None:
    """``functools.cached_property`` of Python 3.11 would wait for ever here.

    It holds a lock for all objects while it computes.
    """
    meet = threading.Barrier(2, timeout=10)

    class Thing:
        @cached_property
        def first(self) -> int:
            meet.wait()
            return self.other.plain_second + 1  # type: ignore[attr-defined]

        @cached_property
        def second(self) -> int:
            meet.wait()
            return self.other.plain_first + 1  # type: ignore[attr-defined]

        plain_first = cached_property(lambda self: 1)
        plain_second = cached_property(lambda self: 2)

    class Crossed(Thing):
        @cached_property
        def plain_first(self) -> int:  # type: ignore[override]
            return self.other.__dict__.get("second", 5)  # type: ignore[attr-defined]

    one, two = Thing(), Crossed()
    one.other, two.other = two, one  # type: ignore[attr-defined]
    got: dict[str, int] = {}
    threads = [
        threading.Thread(target=lambda: got.update(a=one.first)),
        threading.Thread(target=lambda: got.update(b=two.second)),
    ]
    for thread in threads:
        thread.daemon = True
        thread.start()
    for thread in threads:
        thread.join(20)
    assert got == {"a": 3, "b": 2}


def test_a_value_computed_twice_is_one_object() -> None:
    meet = threading.Barrier(4, timeout=10)

    class Thing:
        @cached_property
        def value(self) -> object:
            meet.wait()  # all four compute it
            return object()

    thing, got = Thing(), []
    threads = [threading.Thread(target=lambda: got.append(thing.value)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len(got) == 4 and len({id(value) for value in got}) == 1 and thing.value is got[0]


def test_a_property_may_be_overridden_with_the_help_of_its_parent() -> None:
    class Parent:
        @cached_property
        def value(self) -> list[int]:
            return [1]

    class Child(Parent):
        @cached_property
        def value(self) -> list[int]:
            return [*super().value, 2]

    child = Child()
    assert child.value == [1, 2] and child.value is child.value and Parent().value == [1]


def test_what_is_known_is_not_computed_again_by_whoever_asks_the_property_itself() -> None:
    class Thing:
        asked = 0

        @cached_property
        def value(self) -> int:
            self.asked += 1
            return self.asked

    thing = Thing()
    assert (
        thing.value == thing.value == Thing.__dict__["value"].__get__(thing) == 1
        and thing.asked == 1
    )
