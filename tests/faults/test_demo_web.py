"""The page of the demo, in a real browser: buttons that kill processes, and who may press them."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Page, sync_playwright

from leasekeeper.demo.web import TOKEN_HEADER, Request, refusal

PATIENCE = 60.0


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    command = [sys.executable, "-m", "leasekeeper.cli", "demo", "--web", "--json", "--lease", "2"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as demo:
        assert demo.stdout is not None
        try:
            events = (json.loads(line) for line in demo.stdout)
            yield next(event["address"] for event in events if event["event"] == "page")
        finally:
            demo.send_signal(signal.SIGINT)
            summary = json.loads(demo.stdout.readlines()[-1])
            assert demo.wait(PATIENCE) == 0
            assert (summary["overlaps"], summary["regressions"]) == (0, 0)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    chromium = shutil.which("chromium")
    assert chromium, "install the package chromium"
    # As root, which CI is, the browser's own sandbox cannot be.
    options = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=chromium, args=options)
        yield running
        running.close()


@pytest.fixture
def page(browser: Any, address: str) -> Iterator[Page]:
    """The page in a window of its own; whatever the console says is an error."""
    window = browser.new_page(viewport={"width": 1280, "height": 900})
    window.set_default_timeout(PATIENCE * 1000)
    said: list[str] = []
    window.on("console", lambda message: said.append(message.text))
    window.on("pageerror", lambda wrong: said.append(str(wrong)))
    window.goto(address)
    yield window
    window.close()
    assert said == []


def leader(page: Page, other_than: str = "") -> str:
    """The name of who leads, when somebody does."""
    leads = page.locator("#candidates li", has_text="leads").filter(has_not_text=other_than or "~")
    name = leads.first.locator(".name").inner_text()
    return str(name)


def test_the_leader_is_killed_by_its_button_and_the_takeover_is_seen(page: Page) -> None:
    first = leader(page)
    page.get_by_role("button", name=f"Kill {first}").click()
    page.get_by_text(f"{first} is killed: nobody else can win before its lease").first.wait_for()
    second = leader(page, other_than=first)
    assert second != first
    page.locator("#log .leads", has_text=f"{second} leads with token").first.wait_for()
    page.locator(f'#ring title:has-text("{second} leads with token")').wait_for(state="attached")
    assert page.locator("#timeline rect").count() >= 2
    assert page.locator("#count-overlaps").inner_text() == "0"


def test_a_node_that_restarts_empty_explains_itself(page: Page) -> None:
    leader(page)
    page.get_by_role("button", name="Kill node 3").click()
    page.get_by_text("node 3 restarted empty: it will not vote for 2.1 s, because").first.wait_for()
    page.get_by_text("node 3 votes again").first.wait_for()


def test_every_fault_has_a_button_and_a_key(page: Page) -> None:
    name = leader(page)
    for label in (f"Freeze {name}", f"Cut off {name}", f"Ask {name} to step down"):
        assert page.get_by_role("button", name=label).count() == 1
    for label in ("Step the wall clock of node 1", "Kill all nodes"):
        assert page.get_by_role("button", name=label).count() == 1
    page.get_by_role("button", name=f"Cut off {name}").press("Enter")
    page.get_by_role("button", name=f"Heal {name}").click()
    page.get_by_role("button", name=f"Cut off {name}").wait_for()
    page.keyboard.press("x")
    page.get_by_role("button", name="Chaos is on").wait_for()
    page.keyboard.press("x")
    page.get_by_role("button", name="Chaos: break things").wait_for()


def test_a_key_that_is_held_down_is_one_wish(page: Page) -> None:
    leader(page)
    wishes: list[str] = []
    page.on("request", lambda request: wishes.append(request.url))
    with page.expect_response("**/api/do"):
        for _ in range(3):
            page.keyboard.down("h")  # nobody is cut off: it changes nothing
    page.keyboard.up("h")
    assert len(wishes) == 1


def test_what_cannot_be_done_is_said_and_stays_in_the_log(page: Page) -> None:
    leader(page)
    candidates = page.locator("#candidates li")
    name = candidates.filter(has_text="stands by").first.locator(".name").inner_text()
    page.get_by_role("button", name=f"Cut off {name}").click()  # so that it cannot win meanwhile
    candidates.filter(has_text=name).filter(has_text="cut off").wait_for()
    leader(page, other_than=name)
    down = page.get_by_role("button", name=f"Ask {name} to step down")
    down.click(force=True)  # marked as disabled, and still answered
    said = f"{name} does not lead: there is nothing to step down from"
    page.locator("#log .complaint", has_text=said).wait_for()
    page.get_by_role("button", name=f"Heal {name}").click()


def test_it_fits_a_narrow_screen(page: Page) -> None:
    page.set_viewport_size({"width": 360, "height": 740})
    leader(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= 360


def test_without_the_token_the_page_says_what_to_do(browser: Any, address: str) -> None:
    window = browser.new_page()
    window.goto(address.partition("#")[0])
    window.get_by_text("Open the whole address that the demo printed").wait_for()
    window.close()


KILL = '{"what": "kill-all-nodes"}'


def ask(address: str, method: str, path: str, body: str = KILL, **headers: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port_of(address), timeout=PATIENCE)
    body_or_none = body if method == "POST" else None
    connection.request(
        method, path, body_or_none, {k.replace("_", "-"): v for k, v in headers.items()}
    )
    answer = connection.getresponse()
    return answer.status, "" if answer.status == 200 else answer.read().decode()


def port_of(address: str) -> int:
    return int(address.split(":")[2].partition("/")[0])


def test_only_the_page_itself_may_press_buttons(address: str) -> None:
    token = address.partition("#")[2]
    ours = {"X_Leasekeeper_Token": token}
    assert ask(address, "POST", "/api/do")[0] == 401
    assert ask(address, "POST", "/api/do", **ours, Origin="http://evil.example")[0] == 403
    assert (
        ask(address, "POST", "/api/do", **ours, Host=f"evil.example:{port_of(address)}")[0] == 403
    )
    assert ask(address, "OPTIONS", "/api/do", Origin="http://evil.example")[0] == 403
    assert ask(address, "GET", "/", Host="evil.example")[0] == 403
    assert ask(address, "GET", "/../web.py")[0] == 401
    assert ask(address, "GET", "/../web.py", **ours)[0] == 404
    assert ask(address, "GET", "/")[0] == 200


@pytest.mark.parametrize("body", ["", "[]", "7", '"x"', "{}", "[" * 1024, "\xff"])
def test_a_wish_that_is_none_is_answered(address: str, body: str) -> None:
    headers = {"X_Leasekeeper_Token": address.partition("#")[2]}
    code, said = ask(address, "POST", "/api/do", body, **headers)
    assert (code, "send {" in said) == (400, True)


def test_a_body_that_is_too_long_is_not_waited_for(address: str) -> None:
    headers = {"X_Leasekeeper_Token": address.partition("#")[2], "Content_Length": "1000000"}
    with pytest.raises((http.client.HTTPException, OSError)):
        ask(address, "POST", "/api/do", **headers)


OURS = {"host": "127.0.0.1:80", TOKEN_HEADER: "secret"}


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({}, None),
        ({"host": "localhost:80"}, None),
        ({"origin": "http://127.0.0.1:80", "sec-fetch-site": "same-origin"}, None),
        ({TOKEN_HEADER: "another"}, 401),
        ({TOKEN_HEADER: ""}, 401),
        ({"host": "rebound.example:80"}, 403),
        ({"host": "127.0.0.1:81"}, 403),
        ({"host": ""}, 403),
        ({"origin": "http://localhost:80"}, 403),
        ({"origin": "null"}, 403),
        ({"sec-fetch-site": "cross-site"}, 403),
        ({"sec-fetch-site": "same-site"}, 403),
    ],
    ids=str,
)
def test_who_is_refused(headers: dict[str, str], code: int | None) -> None:
    request = Request("POST", "/api/do", {**OURS, **headers})
    refused = refusal(request, port=80, token="secret")
    assert (refused[0] if refused else None) == code
