"""Properties computed once, also where threads ask together, and where a child asks its parent."""

from __future__ import annotations

from kcalc.foundation.process_state import cached_property


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
