"""A lock's password is read again when its file is replaced."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from leasekeeper_sidecar.current_password import CurrentPassword


def replaced(path: Path, text: str) -> None:
    aside = path.with_suffix(".new")
    aside.write_text(text)
    aside.replace(path)


def lock(name: str, password: object) -> dict[str, object]:
    return {"lock": name, "redlock": {"password": password}}


def test_a_new_file_has_the_new_password_of_this_lock(tmp_path: Path) -> None:
    path = tmp_path / "lock.json"
    current = CurrentPassword(str(path), "shop/orders", "first")
    assert current() == "first"  # no file: the text came by the environment
    replaced(path, json.dumps(lock("shop/orders", "second")))
    assert current() == "second"
    replaced(path, json.dumps([lock("shop/stock", "other"), lock("shop/orders", "third")]))
    assert current() == "third"


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "7", json.dumps(lock("shop/stock", "x")), json.dumps(lock("shop/orders", 7))],
)
def test_what_is_no_password_changes_nothing(tmp_path: Path, text: str) -> None:
    path = tmp_path / "lock.json"
    current = CurrentPassword(str(path), "shop/orders", "first")
    replaced(path, text)
    assert current() == "first"
    path.unlink()
    assert current() == "first"
