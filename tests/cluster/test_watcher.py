"""The watcher itself: a watcher that finds nothing proves nothing unless it finds what is there."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from leasekeeper.demo.history import History, Reading, judge, now
from tests.cluster.client import until
from tests.cluster.watcher import FOLDER, KEPT, VOLUME, Watcher, failures

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
    ("text", "ahead", "leads"),
    [
        (claim("a", 1), True, True),
        (claim("a", 1, leader=False), False, False),
        (claim("a", 1, leader="true"), False, False),
        (claim("a", 1, boot="another"), False, False),
        (claim("a", 1, deadlineCs=1), False, False),
        (claim("a", 1, expiresUnix=1), True, False),
        (claim("a", 1)[:20], False, False),
        (b"", False, False),
        (b"[]", False, False),
    ],
)
def test_the_readers_rule(text: bytes, ahead: bool, leads: bool) -> None:
    judged = judge(text, BOOT, int(now() * 100), time.time())
    assert (judged is not None) is ahead
    assert (judged is not None and judged[1]) is leads


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


def test_the_process_finds_an_overlap_however_short(tmp_path: Path, watcher: Watcher) -> None:
    """The control: the same hand-over, but the old leader lets go too late."""
    with watcher:
        write(tmp_path / "n1", "a", claim("orders-a", 1))
        write(tmp_path / "n2", "b", claim("orders-b", 2, leader=False))
        time.sleep(0.3)
        write(tmp_path / "n2", "b", claim("orders-b", 2))
        until("it is found", lambda: bool(watcher.wrong()))
        write(tmp_path / "n1", "a", claim("orders-a", 1, leader=False))
    assert watcher.wrong() == [TWO]
    assert watcher.take() == [TWO]


def test_an_overlap_that_the_wall_clock_hides_is_found(tmp_path: Path, watcher: Watcher) -> None:
    """No reader goes by the old file any more, and its deadline is too late all the same."""
    with watcher:
        write(tmp_path / "n1", "a", claim("orders-a", 1))
        until("a leads", lambda: watcher.latest("shop/orders"))
        write(tmp_path / "n1", "a", claim("orders-a", 1, expiresUnix=1))
        until("a's end is seen", lambda: watcher.events()[-1]["event"] == "ends")
        write(tmp_path / "n2", "b", claim("orders-b", 2))
        until("it is found", lambda: bool(watcher.wrong()))
    assert watcher.wrong() == [TWO]


TWO = "two leaders of shop/orders: orders-a (token 1) and orders-b (token 2)"


def test_what_was_found_is_told_once_and_never_to_nobody(tmp_path: Path, watcher: Watcher) -> None:
    with watcher:
        for root, pod, token in (("n1", "a", 1), ("n2", "b", 2)):
            write(tmp_path / root, pod, claim(f"orders-{pod}", token))
        until("it is found", lambda: bool(watcher.wrong()))
        assert watcher.take() == [TWO]
        assert watcher.take() == []
        write(tmp_path / "n1", "c", claim("orders-c", 3))
        until("a third is found", lambda: len(watcher.wrong()) == 3)
    assert len(watcher.take()) == 2, "also after its end"
    assert watcher.take() == []


def test_a_watcher_that_died_is_told_of_each_time(tmp_path: Path, watcher: Watcher) -> None:
    """Also after it has found something: in the rest of the run it sees nothing."""
    with watcher:
        for root, pod, token in (("n1", "a", 1), ("n2", "b", 2)):
            write(tmp_path / root, pod, claim(f"orders-{pod}", token))
        until("it is found", lambda: bool(watcher.wrong()))
        assert watcher.take() == [TWO]
        assert watcher._child is not None
        watcher._child.kill()
        watcher._child.wait()
        for _ in range(2):
            assert watcher.take() == ["the watcher died (exit -9)"]
    assert watcher.take() == ["the watcher died (exit -9)"], "and at the end"


def test_a_control_excuses_two_leaders_of_its_own_lock_and_nothing_else() -> None:
    others = ["two leaders of shop/orders2: a and b", "token of shop/orders did not grow: …"]
    assert failures([TWO], "shop/orders") == []
    assert failures([TWO, *others], "shop/orders") == others
    assert failures([], "shop/orders") == ["the watcher did not find two leaders of shop/orders"]
    assert failures([TWO]) == [TWO]


def test_the_log_of_a_pod_that_is_gone_is_kept(tmp_path: Path) -> None:
    place = "n1/shop_orders-a_uid/app/0.log"
    log = tmp_path / "log" / "pods" / place
    kept = tmp_path / "log" / KEPT / place
    log.parent.mkdir(parents=True)
    log.write_text("its first words\n")
    with Watcher([str(tmp_path / "n1")], tmp_path / "watched.jsonl", tmp_path / "log"):
        until("it is kept", kept.exists)
        with log.open("a") as more:
            more.write("its last words\n")
        log.unlink()
    assert kept.read_text() == "its first words\nits last words\n"


def test_a_pod_with_several_locks_has_a_file_for_each(tmp_path: Path, watcher: Watcher) -> None:
    """And two leaders of one of them are found there, too."""
    mail = f"{FOLDER}/mail/leader"
    with watcher:
        for root, pod, token in (("n1", "a", 1), ("n2", "b", 2)):
            write(tmp_path / root, pod, claim(f"orders-{pod}", token, lock="shop/mail"), mail)
        until("it is found", lambda: bool(watcher.wrong()))
    assert watcher.wrong() == [
        "two leaders of shop/mail: orders-a (token 1) and orders-b (token 2)"
    ]
