"""The record's pages: what stands in the record is what they show."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.cluster import conftest, report, report_page
from tests.cluster.recorder import Recorder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run of two scenarios: a hand-over, and a control in which two led."""

    def line(event: str, at: float, **fields: Any) -> dict[str, Any]:
        return {"event": event, "at": at, **fields}

    def tenure(event: str, at: float, holder: str, token: int, lock: str) -> dict[str, Any]:
        who = {"lock": lock, "holder": holder, "token": token, "pod": f"uid of {holder}"}
        return line(event, at, **who, **({"last": at} if event == "ends" else {}))

    def scenario(name: str, began: float, ended: float, **fields: Any) -> dict[str, Any]:
        about = {"id": name, "chapter": "2. Faults", "title": f"<{name}>", "outcome": "passed"}
        return line(
            "scenario", ended, scenario=name, **about, **fields, **{"from": began, "to": ended}
        )

    record = [
        line("fault", 12, scenario="one", text="a & b cut off", **{"from": 12.0, "to": 14.0}),
        line("hand-over", 13, scenario="one", cause="cut", after=1.2, gap=0.4, old="a", new="b"),
        scenario("one", 10, 20, namespace="shop"),
        scenario("two", 30, 40, namespace="control", control="no deadline", lock="control/orders"),
    ]
    watched = [
        tenure("leads", 5, "a", 7, "shop/orders"),
        tenure("ends", 12.8, "a", 7, "shop/orders"),
        tenure("leads", 13.2, "b", 8, "shop/orders"),
        line("wrong", 35, text="two leaders of control/orders: a and b"),
        line("summary", 50, sweeps=1234, longestGap=0.02, wrong=[]),
    ]
    for name, lines in (("record", record), ("watched", watched)):
        text = "".join(json.dumps(one) + "\n" for one in lines)
        (tmp_path / f"{name}.jsonl").write_text(text)
    return tmp_path


def test_a_scenario_has_its_own_tenures_faults_and_hand_overs(folder: Path) -> None:
    one, two = report.read(folder).scenarios
    assert [(t.text, t.began, t.ended) for t in one.tenures] == [("a", 5, 12.8), ("b", 13.2, 50)]
    assert [fault.text for fault in one.faults] == ["a & b cut off"]
    assert [(done.cause, done.gap) for done in one.hand_overs] == [("cut", 0.4)]
    assert (two.tenures, two.control) == ([], "no deadline")


def test_what_a_control_had_to_produce_is_not_wrong_and_anything_else_is(folder: Path) -> None:
    assert report.read(folder).wrong == []
    with (folder / "watched.jsonl").open("a") as watched:
        watched.write(json.dumps({"event": "wrong", "at": 15, "text": "two leaders"}) + "\n")
    run = report.read(folder)
    assert run.wrong == ["two leaders"]
    assert "SAFETY WAS LOST" in report.verdict(run)


def test_a_control_excuses_its_own_lock_only(folder: Path) -> None:
    """Whenever it was found: another lock's two leaders are wrong during a control, too."""
    with (folder / "watched.jsonl").open("a") as watched:
        line = {"event": "wrong", "at": 35, "text": "two leaders of shop/orders: a and b"}
        watched.write(json.dumps(line) + "\n")
    assert report.read(folder).wrong == ["two leaders of shop/orders: a and b"]


def test_a_run_without_the_watchers_last_word_is_not_good(folder: Path) -> None:
    assert report.read(folder).good
    file = folder / "watched.jsonl"
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join(line for line in lines if '"summary"' not in line))
    run = report.read(folder)
    assert report.verdict(run) == "all scenarios passed; the watcher did not finish"
    assert not run.good


def test_a_tenure_with_a_gap_is_not_drawn_as_one_bar(folder: Path) -> None:
    """One token, and for two seconds nobody led."""
    who = {"lock": "shop/orders", "holder": "b", "token": 8, "pod": "uid of b"}
    with (folder / "watched.jsonl").open("a") as watched:
        for event, fields in (("ends", {"at": 15.0, "last": 15.0}), ("leads", {"at": 17.0})):
            watched.write(json.dumps({"event": event, **who, **fields}) + "\n")
    run = report.read(folder)
    _, tenure = run.scenarios[0].tenures
    assert (tenure.began, tenure.ended, tenure.gaps) == (13.2, 50, ((15, 17),))
    assert tenure.seconds == pytest.approx(34.8)
    page = report_page.html(run)
    assert "nobody led for 2.0 s" in page
    assert page.count("b led with token 8 for 34.8 s") == 4, "two pieces, in two pictures"


def test_a_scenario_that_could_not_begin_is_a_failed_one(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    module = SimpleNamespace(obj=SimpleNamespace(__doc__="2. Faults"))
    item: Any = SimpleNamespace(
        name="test_it_leads",
        config=SimpleNamespace(stash={conftest.RECORDING: recorder}),
        getparent=lambda _: module,
    )
    conftest._record_as_failed(item)
    assert report.verdict(report.read(tmp_path)).startswith("1 scenario failed")
    # One that has begun is ended by the fixture that began it, and not twice.
    recorder.begin("another", chapter="2. Faults", title="another")
    conftest._record_as_failed(item)
    recorder.end("failed")
    assert [one.id for one in report.read(tmp_path).scenarios] == ["test_it_leads", "another"]


def test_a_failed_scenario_is_counted(folder: Path) -> None:
    run = report.read(folder)
    assert "all scenarios passed" in report.verdict(run)
    run.scenarios[0].outcome = "failed"
    assert "1 scenario failed" in report.verdict(run)


def test_the_page_is_one_file_that_needs_no_network(folder: Path) -> None:
    page = report.write(folder).read_text()
    for reference in ("src=", "href=", "url(http", "@import", "fetch("):
        assert reference not in page
    assert "&lt;one&gt;" in page
    assert "<one>" not in page
    assert "a &amp; b cut off" in page
    assert "| cut | 1 | 1.2 s | 1.2 s | 400 ms |" in (folder / "summary.md").read_text()


def test_a_run_without_scenarios_has_a_page_too(tmp_path: Path) -> None:
    run = report.read(tmp_path)
    assert "0 leaders" not in report_page.html(run)
    assert report.verdict(run) == "nothing ran; the watcher did not finish"
    assert not run.good


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0.0042, "4.2 ms"),
        (0.0134, "13 ms"),
        (1.94, "1.9 s"),
        (61.0, "61.0 s"),
        (754, "12 min 34 s"),
    ],
)
def test_durations_have_digits_that_mean_something(seconds: float, shown: str) -> None:
    assert report.duration(seconds) == shown
