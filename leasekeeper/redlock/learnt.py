"""What a memory must learn before it votes: of every lock the highest token, the floor, and
everybody's incarnations. Nodes that lost their memory learn it from others, and those of a new list
from the old one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from leasekeeper.redlock.registry import NOT_A_TOKEN, parse_vector

PAGE = 500  # locks in one call of lk1_learn: well below a millisecond of the server's time


@dataclass(frozen=True, slots=True)
class Learnt:
    """What one of the others knows, or (see `merge`) Q of them."""

    floor: int = 0
    vector: Mapping[str, int] = field(default_factory=dict)
    fences: Mapping[str, int] = field(default_factory=dict)
    nonsense: tuple[str, ...] = ()
    """Locks whose counter cannot be the protocol's: a tenant may have written it. Not adopted."""

    def with_page(self, page: list[str]) -> Learnt:
        """Adds one reply of `lk1_dump`."""
        fences, nonsense = dict(self.fences), list(self.nonsense)
        pairs = page[6:-2]
        for lock, text in zip(pairs[::2], pairs[1::2], strict=True):
            if plausible_token(text):
                fences[lock] = max(fences.get(lock, 0), int(text))
            else:
                nonsense.append(lock)
        vector = dict(self.vector)
        for id, incarnation in parse_vector(page[-1]).items():
            vector[id] = max(vector.get(id, 0), incarnation)
        return Learnt(max(self.floor, int(page[4])), vector, fences, tuple(nonsense))


def learn_arguments(life: str, learnt: Learnt) -> Iterator[tuple[str, ...]]:
    """Of the calls of `lk1_learn` that give one memory all of it."""
    vector = ",".join(f"{id}:{number}" for id, number in learnt.vector.items())
    flat = [str(part) for pair in learnt.fences.items() for part in pair]
    for start in range(0, len(flat) or 1, 2 * PAGE):
        yield life, str(learnt.floor), vector, *flat[start : start + 2 * PAGE]


def plausible_token(text: str) -> bool:
    """A tenant can write what it likes into its own lock; 5,000 digits are no number for Python."""
    return len(text) <= 16 and text.isascii() and text.isdigit() and int(text) < NOT_A_TOKEN


def merge(helpers: Sequence[Learnt]) -> Learnt:
    """What all of them know together. A helper that knows nothing of a lock knows that its next
    token there is above its floor: so that counts for it.
    """
    locks = {lock for helper in helpers for lock in helper.fences}
    ids = {id for helper in helpers for id in helper.vector}
    return Learnt(
        floor=max((helper.floor for helper in helpers), default=0),
        vector={id: max(helper.vector.get(id, 0) for helper in helpers) for id in sorted(ids)},
        fences={
            lock: max(helper.fences.get(lock, helper.floor) for helper in helpers)
            for lock in sorted(locks)
        },
        nonsense=tuple(dict.fromkeys(lock for helper in helpers for lock in helper.nonsense)),
    )
