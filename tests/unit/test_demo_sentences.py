"""What the demo says of a repair is true: a short freeze need not cost the leader its lock."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from leasekeeper.demo.faults import Faults
from leasekeeper.demo.proxy import Cuts


class Stage:
    """Keeps what was said."""

    leader = "a"

    def __init__(self) -> None:
        self.said: list[str] = []

    def say(self, event: str, sentence: str, **fields: object) -> None:
        self.said.append(sentence)

    def later(self, seconds: float, work: object) -> None:
        raise AssertionError("nothing here is due later")


@pytest.mark.parametrize(
    ("leads", "words"), [(True, "and it leads on"), (False, "and it stands by")]
)
@pytest.mark.parametrize("repair", ["thaw", "heal"])
async def test_a_repair_says_whether_the_deadline_is_still_ahead(
    repair: str, leads: bool, words: str
) -> None:
    candidate = SimpleNamespace(name="a", frozen=True, thaw=lambda: None)
    readings = [SimpleNamespace(pod="a")] if leads else []
    world = SimpleNamespace(candidates=[candidate], cuts=Cuts(), readings=lambda: readings)
    world.cuts.cut("a")
    stage = Stage()
    faults = Faults(cast(Any, world), cast(Any, None), cast(Any, stage))
    assert await faults.cause(repair, "a") == ""
    assert stage.said[0].endswith(words)
