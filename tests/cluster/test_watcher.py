"""The watcher itself: a watcher that finds nothing proves nothing unless it finds what is there."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path

import pytest

from leasekeeper.demo.history import History, Reading, judge, now
from tests.cluster.watcher import FOLDER, VOLUME, Watcher

BOOT = Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def reading(pod: str, token: int, began: float, lock: str = "shop/orders") -> Reading:
    return Reading(lock, pod, f"name-of-{pod}", token, began, began + 0.001)


def seen(*readings: Reading) -> History:
    history = History()
    for one in readings:
        history.see(one)
    return history


def test_one_after_the_other_is_no_overlap() -> None:
    history = seen(reading("a", 1, 0), reading("a", 1, 5), reading("b", 2, 5.5), reading("b", 2, 9))
    assert history.wrong == []
    assert [tenure.token for tenure in history.tenures] == [1, 2]


def test_a_hand_over_within_one_sweep_is_no_overlap() -> None:
    """a was read before it let go, b after it won, and a is not seen again."""
    history = seen(reading("a", 1, 0), reading("a", 1, 5), reading("b", 2, 5.0005))
    history.see(reading("b", 2, 6))
    assert history.wrong == []


def test_two_leaders_are_found() -> None:
    history = seen(reading("a", 1, 0), reading("b", 2, 1), reading("a", 1, 2), reading("b", 2, 3))
    (text,) = history.wrong
    assert text == "two leaders of shop/orders: name-of-a (token 1) and name-of-b (token 2)"


def test_an_overlap_that_is_over_is_found_however_late_the_second_is_seen_again() -> None:
    history = seen(reading("a", 1, 0), reading("b", 2, 1), reading("a", 1, 2), reading("b", 2, 900))
    assert len(history.wrong) == 1


def test_two_locks_have_two_leaders() -> None:
    one, other = "shop/orders", "shop/mail"
    history = seen(
        *(reading(pod, 1, at, lock) for at in (0, 1, 2) for pod, lock in (("a", one), ("b", other)))
    )
    assert history.wrong == []


@pytest.mark.parametrize("token", [1, 2])
def test_a_token_that_does_not_grow_is_found(token: int) -> None:
    history = seen(reading("a", 2, 0), reading("b", token, 5))
    assert history.wrong == [
        f"token of shop/orders did not grow: name-of-b leads with {token}"
        " after name-of-a led with 2"
    ]


def claim(holder: str, token: int, seconds: float = 3600, **changed: object) -> bytes:
    said = {
        "lock": "shop/orders",
        "leader": True,
        "holder": holder,
        "token": token,
        "expiresUnix": int(time.time() + seconds),
        "deadlineCs": int((now() + seconds) * 100),
        "boot": BOOT,
        **changed,
    }
    return json.dumps(said).encode()


@pytest.mark.parametrize(
    ("text", "leads"),
    [
        (claim("a", 1), True),
        (claim("a", 1, leader=False), False),
        (claim("a", 1, leader="true"), False),
        (claim("a", 1, boot="another"), False),
        (claim("a", 1, deadlineCs=1), False),
        (claim("a", 1, expiresUnix=1), False),
        (claim("a", 1)[:20], False),
        (b"", False),
        (b"[]", False),
    ],
)
def test_the_readers_rule(text: bytes, leads: bool) -> None:
    assert (judge(text, BOOT, int(now() * 100), time.time()) is not None) is leads


def write(root: Path, pod: str, text: bytes, place: str = VOLUME) -> None:
    """As a sidecar does: aside, and renamed."""
    file = root / "pods" / pod / place
    file.parent.mkdir(parents=True, exist_ok=True)
    aside = file.with_suffix(".new")
    aside.write_bytes(text)
    aside.rename(file)


@pytest.fixture
def watcher(tmp_path: Path) -> Watcher:
    return Watcher([str(tmp_path / "n1"), str(tmp_path / "n2")], tmp_path / "watched.jsonl")


def test_the_process_follows_a_hand_over(tmp_path: Path, watcher: Watcher) -> None:
    with watcher:
        write(tmp_path / "n1", "a", claim("orders-a", 1))
        time.sleep(0.3)
        write(tmp_path / "n1", "a", claim("orders-a", 1, leader=False))
        write(tmp_path / "n2", "b", claim("orders-b", 2))
        time.sleep(0.3)
        latest = watcher.latest("shop/orders")
        assert latest is not None
        assert (latest["holder"], latest["token"], latest["pod"]) == ("orders-b", 2, "b")
    assert watcher.wrong() == []
    summary = watcher.summary()
    assert summary["wrong"] == []
    assert summary["sweeps"] > 20


def test_the_process_finds_an_overlap_of_a_few_milliseconds(
    tmp_path: Path, watcher: Watcher
) -> None:
    """The control: the same hand-over, but the old leader lets go too late."""
    with watcher:
        write(tmp_path / "n1", "a", claim("orders-a", 1))
        write(tmp_path / "n2", "b", claim("orders-b", 2, leader=False))
        time.sleep(0.3)
        letting_go = threading.Timer(
            0.02, write, (tmp_path / "n1", "a", claim("orders-a", 1, leader=False))
        )
        letting_go.start()
        write(tmp_path / "n2", "b", claim("orders-b", 2))
        letting_go.join()
        time.sleep(0.3)
    assert watcher.wrong() == [
        "two leaders of shop/orders: orders-a (token 1) and orders-b (token 2)"
    ]


def test_a_pod_with_several_locks_has_a_file_for_each(tmp_path: Path, watcher: Watcher) -> None:
    """And two leaders of one of them are found there, too."""
    mail = f"{FOLDER}/mail/leader"
    with watcher:
        for root, pod, token in (("n1", "a", 1), ("n2", "b", 2)):
            write(tmp_path / root, pod, claim(f"orders-{pod}", token, lock="shop/mail"), mail)
        deadline = time.monotonic() + 10
        while not watcher.wrong() and time.monotonic() < deadline:
            time.sleep(0.05)
    assert watcher.wrong() == [
        "two leaders of shop/mail: orders-a (token 1) and orders-b (token 2)"
    ]
