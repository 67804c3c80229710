"""`leasekeeper observe` and `leasekeeper status`: what the nodes say, for people and scripts.

They change nothing, and no decision of an election rests on them.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from typing import TypeVar

from leasekeeper.cli_target import (
    HOW_TO_REACH,
    Address,
    Target,
    add_options,
    ask,
    password_of,
    read_target,
)
from leasekeeper.redlock import users
from leasekeeper.redlock.blocking import BadCredentials, Broken, Connection, Refusal
from leasekeeper.redlock.membership import Membership, handed_over
from leasekeeper.redlock.registry import NodeView

T = TypeVar("T")
EXIT_YES, EXIT_NO, EXIT_CREDENTIALS, EXIT_CANNOT_TELL = 0, 1, 3, 4

_OBSERVE = f"""\
Asks the nodes who holds a lock, with which token, and for how long. An answer needs a majority.

{HOW_TO_REACH}
exit codes:
  0  somebody holds it
  1  nobody holds it
  2  an option or a file cannot be used
  3  every node that answered refused the user or its password
  4  cannot tell: no majority of the nodes answered, or they do not agree

examples:
  leasekeeper observe shop/orders --nodes 10.0.0.1:6379,10.0.0.2:6379,10.0.0.3:6379 \\
      --password-file orders.password
  leasekeeper observe --config lock.json --json
"""

_STATUS = """\
Shows the nodes of an ensemble: which ones vote, and what the others wait for.

exit codes:
  0  a majority of the nodes votes
  1  fewer than a majority of the members were seen to vote
  2  an option or a file cannot be used
  3  every node that answered refused the user or its password

examples:
  leasekeeper status --nodes 10.0.0.1:6379,10.0.0.2:6379,10.0.0.3:6379 \\
      --password-file operator.password
  leasekeeper status --nodes … --user peer --password-file credentials/peer --json
"""


def add_parsers(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    observe = commands.add_parser(
        "observe",
        help="who holds a lock, with which token, and for how long",
        description=_OBSERVE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    observe.add_argument("lock", metavar="LOCK", nargs="?", help="NAMESPACE/NAME")
    status = commands.add_parser(
        "status",
        help="which nodes of an ensemble vote",
        description=_STATUS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add_options(observe)
    add_options(
        status,
        config="a lock.json, for the nodes and their TLS only",
        user=f"default: {users.OPERATOR}; {users.PEER} may, too",
    )
    for parser in (observe, status):
        parser.add_argument("--json", action="store_true", help="one JSON object")


# -- observe -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Word:
    """What one node says about the lock."""

    node: str
    says: str
    """`held`, `free`, `closed` (it does not vote now), `refused` or `unreachable`."""
    holder: str = ""
    token: int = 0
    left: float = 0.0
    why: str = ""
    members: int = 0
    """How many nodes it knows of; 0: it did not say."""


@dataclass(frozen=True, slots=True)
class Answer:
    says: str
    """`held`, `free` or `unknown`."""
    holder: str
    token: int
    left: float
    nodes: tuple[Word, ...]


def judge(words: Sequence[Word], members: int) -> Answer:
    """Pure. A majority of all members must agree, not one of those that happened to answer."""
    quorum = members // 2 + 1
    holders = Counter(word.holder for word in words if word.says == "held")
    holder, votes = holders.most_common(1)[0] if holders else ("", 0)
    free = sum(word.says == "free" for word in words)
    held = members > 0 and votes >= quorum
    mine = [word for word in words if word.says == "held" and word.holder == holder]
    return Answer(
        says="held" if held else "free" if members > 0 and free >= quorum else "unknown",
        holder=holder if held else "",
        token=max((word.token for word in mine), default=0) if held else 0,
        left=min((word.left for word in mine), default=0.0) if held else 0.0,
        nodes=tuple(words),
    )


def _word(target: Target, address: Address) -> Word:
    name = address if isinstance(address, str) else f"{address[0]}:{address[1]}"
    try:
        connection = target.connect(address)
        try:
            return _look(name, *_asked_twice(target, connection))
        finally:
            connection.close()
    except BadCredentials as wrong:
        # A node that does not vote has no users of locks: this may be no more than that.
        return Word(name, "refused", why=str(wrong))
    except Refusal as wrong:
        return Word(name, "closed", why=str(wrong))
    except Broken as wrong:
        return Word(name, "unreachable", why=str(wrong))


def _asked_twice(target: Target, connection: Connection) -> tuple[list[str], int]:
    """Its epoch is the first answer to whoever does not know it, and the way to the second."""
    first = ask(connection, target.lock, "?")
    if first[0] != "EPOCH":
        return first, 0
    members = len(Membership.from_json(json.loads(first[2])).nodes) if first[2] else 0
    return ask(connection, target.lock, first[1]), members


def _look(name: str, said: list[str], members: int) -> Word:
    if said[0] != "LOCK":
        return Word(name, "closed", why=said[0], members=members)
    owner, left, fence = said[1], int(said[2]) / 1e6, int(said[3])
    if not owner:
        return Word(name, "free", token=fence, members=members)
    return Word(name, "held", owner, fence, round(left, 3), members=members)


def observe(options: argparse.Namespace) -> int:
    target = read_target(options)
    words = _of_all(target, _word)
    known = [len(target.membership.nodes)] if target.membership else []
    answer = judge(words, max([*known, *(word.members for word in words)], default=0))
    if options.json:
        print(json.dumps({"lock": target.lock, **asdict(answer)}))
    else:
        _print_answer(target.lock, answer)
    if all(word.says in ("refused", "unreachable") for word in words) and any(
        word.says == "refused" for word in words
    ):
        return EXIT_CREDENTIALS
    return {"held": EXIT_YES, "free": EXIT_NO}.get(answer.says, EXIT_CANNOT_TELL)


def _print_answer(lock: str, answer: Answer) -> None:
    if answer.says == "held":
        print(f"{lock} is held by {answer.holder.partition('/')[0]} (id {answer.holder})")
        print(f"token {answer.token}, {answer.left:.1f} s left if it is not renewed")
    elif answer.says == "free":
        print(f"{lock} is free")
    else:
        print(f"{lock}: cannot tell, no majority of the nodes agrees")
    for word in answer.nodes:
        detail = f" by {word.holder.partition('/')[0]}, token {word.token}" if word.holder else ""
        print(f"  {word.node:<24} {word.says}{detail}{f': {word.why}' if word.why else ''}")


# -- status ------------------------------------------------------------------------------------


def _state(target: Target, address: Address) -> dict[str, object]:
    name = address if isinstance(address, str) else f"{address[0]}:{address[1]}"
    try:
        connection = target.connect(address)
        try:
            view = NodeView.from_reply(connection.fcall("lk1_state"))
        finally:
            connection.close()
    except BadCredentials as wrong:
        return {"node": name, "state": "refused", "why": str(wrong)}
    except Refusal as wrong:
        return {"node": name, "state": "no agent yet", "why": str(wrong)}
    except Broken as wrong:
        return {"node": name, "state": "unreachable", "why": str(wrong)}
    state = "open" if view.open else "recovering" if view.rested else "quarantine"
    members = handed_over(view.epoch, view.members)
    return {
        "node": name,
        "id": view.id,
        "state": state if view.life else "no memory",
        "incarnation": view.incarnation,
        "epoch": view.epoch,
        "locks": view.locks,
        "floor": view.floor,
        "members": len(members.nodes) if members else 0,
    }


def status(options: argparse.Namespace) -> int:
    target = read_target(options, default_user=users.OPERATOR)
    if options.config:  # a lock's user may not see more than its lock
        user = options.user or users.OPERATOR
        target = replace(target, username=user, password=password_of(options))
    states = _of_all(target, _state)
    voting = sum(state["state"] == "open" for state in states)
    # Of the members, also if only some of them were asked.
    members = max(len(states), *(int(str(state.get("members", 0))) for state in states))
    quorum = members // 2 + 1
    if options.json:
        counts = {"voting": voting, "quorum": quorum, "members": members}
        print(json.dumps({**counts, "nodes": states}))
    else:
        print(f"{voting} of {members} nodes vote; {quorum} are a majority")
        _print_states(states, unasked=members - len(states))
    if all(state["state"] == "refused" for state in states):
        return EXIT_CREDENTIALS
    return EXIT_YES if voting >= quorum else EXIT_NO


def _print_states(states: list[dict[str, object]], *, unasked: int) -> None:
    for state in states:
        number = f"node {state['id']}" if state.get("id") else ""
        more = state.get("why") or f"{state.get('locks')} locks, epoch {state.get('epoch')}"
        print(f"  {state['node']!s:<24} {number:<8} {state['state']!s:<12} {more}")
    if unasked:
        print(f"  {unasked} more not asked: name them with --nodes")


def _of_all(target: Target, look: Callable[[Target, Address], T]) -> list[T]:
    """Of all nodes at the same time: one that hangs costs its time-out once."""
    with ThreadPoolExecutor(len(target.addresses)) as threads:
        return list(threads.map(lambda address: look(target, address), target.addresses))
