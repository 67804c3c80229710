"""What is told of births; that they are right is tried with real nodes (test_real_nodes.py)."""

from __future__ import annotations

import copy
from typing import Any, cast

from leasekeeper_operator.api import Api
from leasekeeper_operator.births import Births, record_of
from leasekeeper_operator.lock_users import LockUsers
from leasekeeper_operator.model import Ensemble
from leasekeeper_operator.nodes import Nodes, Sight

from leasekeeper.redlock.registry import NodeView
from tests.operator.samples import Object, ensemble_object


class World:
    """An API server and the nodes of an ensemble whose locks nobody has published."""

    def __init__(self) -> None:
        self.ensemble = ensemble_object(nodes=3)
        self.events: list[Object] = []

    async def ever_published(self, _: Ensemble) -> bool:
        return False

    async def replace_status(self, obj: Object) -> Object:
        self.ensemble = copy.deepcopy(obj)
        return self.ensemble

    async def create(self, obj: Object) -> Object:
        assert record_of(self.ensemble) is not None, "recorded before it is told"
        self.events.append(obj)
        return obj

    async def birth(self, *_: Any) -> None:
        pass

    async def highest(self, _: str) -> int:
        return 0


async def test_a_birth_and_a_total_loss_are_told_once() -> None:
    world = World()
    births = Births(cast(Api, world), cast(LockUsers, world), lambda: 0.0)
    told = []
    for life in ("first", "first", "second", "second"):
        views = {id: NodeView(id=id, life=f"{life}-{id}", rested=True) for id in "012"}
        sights = {id: Sight(id, "Closed", view) for id, view in views.items()}
        before = len(world.events)
        place = Ensemble.parse(world.ensemble)
        await births.bring(place, world.ensemble, cast(Nodes, world), sights)
        told.append([(event["reason"], event["type"]) for event in world.events[before:]])
    assert told == [[("Born", "Normal")], [], [("MemoryLost", "Warning")], []]
    record = record_of(world.ensemble)
    assert record is not None
    assert str(record.floor) in world.events[-1]["message"]
