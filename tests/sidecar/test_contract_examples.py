"""The examples of docs/app-contract.md, each taken from the page and run, in its own language."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from databases import MariaDb, PostgreSql
from leasekeeper_sidecar import metrics
from leasekeeper_sidecar.claim import Claim, standby_claim
from leasekeeper_sidecar.host import Proc
from leasekeeper_sidecar.leader_file import LeaderFile

PAGE = Path(__file__).resolve().parents[2] / "docs" / "app-contract.md"
HOST = Proc()
LANGUAGES = {
    "sh": ("example.sh", ["sh"]),
    "python": ("example.py", [sys.executable]),
    "go": ("example.go", ["go", "run"]),
    "java": ("Leader.java", ["java"]),
    "js": ("example.js", ["node"]),
}
TITLES = {"sh": "sh", "python": "Python", "go": "Go", "java": "Java", "js": "Node"}
# Only what is on this machine; a test that is skipped would fail a run of CI.
PRESENT = [name for name, (_, command) in LANGUAGES.items() if shutil.which(command[0])]


def code(language: str, title: str = "") -> str:
    """The block in this language that follows its title, in bold."""
    title = re.escape(title or TITLES[language])
    pattern = rf"\n\*\*{title}\*\*[^\n]*\n```{language}\n(.*?)```"
    found = re.search(pattern, PAGE.read_text(), re.DOTALL)
    assert found, f"no example in {language}"
    return found.group(1)


@pytest.fixture(scope="module", params=PRESENT)
def program(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Callable[[], subprocess.CompletedProcess[str]]]:
    """The example with its path changed to a folder of ours, compiled once if need be."""
    language: str = request.param
    folder = tmp_path_factory.mktemp(language)
    name, command = LANGUAGES[language]
    text = code(language)
    assert "/var/run/lock" in text
    LeaderFile(str(folder)).install_programs()
    source = folder / name
    source.write_text(text.replace("/var/run/lock", str(folder)))
    if language == "go":
        command = [str(folder / "example")]
        environment = {**os.environ, "GO111MODULE": "off"}
        build = ["go", "build", "-o", command[0], str(source)]
        subprocess.run(build, check=True, env=environment)
    elif language == "java" and shutil.which("javac"):
        subprocess.run(["javac", "-d", str(folder), str(source)], check=True)
        command = ["java", "-XX:TieredStopAtLevel=1", "-cp", str(folder), "Leader"]
    else:
        command = [*command, str(source)]
    return folder, lambda: subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=False
    )


def true_claim() -> Claim:
    wall = HOST.wall()
    return Claim(
        lock="shop/orders",
        leader=True,
        boot=HOST.boot_id(),
        holder="orders-0",
        token=1_763_427_723_456,
        acquired=wall,
        expires=wall + 600,
        expires_unix=int(wall + 600),
        deadline_cs=HOST.uptime_cs() + 60_000,
    )


def test_an_example_says_yes_exactly_when_the_rule_does(
    program: tuple[Path, Callable[[], subprocess.CompletedProcess[str]]],
) -> None:
    folder, run = program
    true = true_claim()
    file = folder / "leader"

    file.write_text(true.to_json())
    done = run()
    assert (done.returncode, done.stdout.strip()) == (0, str(true.token)), done.stderr

    no = {
        "a standby's": standby_claim("shop/orders", boot=HOST.boot_id(), holder="a", seen=1.0),
        "past its deadline": replace(true, deadline_cs=HOST.uptime_cs()),
        "expired on the wall clock": replace(true, expires_unix=int(HOST.wall())),
        "of another boot": replace(true, boot="5f0c2a44-6c1e-4c55-9b1e-6f0f2b1f7a10"),
    }
    for what, claim in no.items():
        file.write_text(claim.to_json())
        done = run()
        assert (done.returncode, done.stdout) == (1, ""), f"{what}: {done.stderr}"
    file.write_text(true.to_json()[:-30])
    assert run().returncode == 1, "half a file"
    file.unlink()
    assert run().returncode == 1, "no file"


def test_the_page_shows_every_language_that_it_promises() -> None:
    for language in LANGUAGES:
        assert code(language)


# -- how a resource checks the token ---------------------------------------------------------------


def in_sqlite(statements: list[str], tokens: Sequence[int]) -> list[int]:
    """How many rows the last statement updated with each token, as the driver says."""
    *prepare, update = statements
    with sqlite3.connect(":memory:") as database:
        for statement in prepare:
            database.execute(statement)
        return [database.execute(update, {"token": token}).rowcount for token in tokens]


def in_mariadb(statements: list[str], tokens: Sequence[int]) -> list[int]:
    import pymysql

    *prepare, update = statements
    with MariaDb() as server:
        server.sql("CREATE DATABASE app")
        where = {"unix_socket": str(server.socket), "user": "root", "database": "app"}
        with pymysql.connect(**where) as connection, connection.cursor() as cursor:
            for statement in prepare:
                cursor.execute(statement)
            named = update.replace(":token", "%(token)s")
            return [cursor.execute(named, {"token": token}) for token in tokens]


def in_postgresql(statements: list[str], tokens: Sequence[int]) -> list[int]:
    import asyncpg

    async def run(server: PostgreSql) -> list[int]:
        *prepare, update = statements
        where = {"host": str(server.home), "port": server.port}
        connection = await asyncpg.connect(**where, user="postgres", password=server.password)
        try:
            for statement in prepare:
                await connection.execute(statement)
            numbered = update.replace(":token", "$1")
            done = [await connection.execute(numbered, token) for token in tokens]
            return [int(tag.removeprefix("UPDATE ")) for tag in done]
        finally:
            await connection.close()

    with PostgreSql() as server:
        return asyncio.run(run(server))


@pytest.mark.parametrize("run", [in_sqlite, in_mariadb, in_postgresql])
def test_the_databases_row_shuts_an_old_leader_out(
    run: Callable[[list[str], Sequence[int]], list[int]],
) -> None:
    statements = code("sql", "A database").split(";\n")[:3]
    tokens = (7, 9, 9, 7, 10)
    assert [count == 1 for count in run(statements, tokens)] == [True, True, True, False, True]


class ObjectStore:
    """One object; a write on condition of its ETag. Somebody may come in between."""

    def __init__(self) -> None:
        self.contents, self.metadata, self.etag = "", dict[str, str](), 0
        self.in_between: Callable[[], None] = lambda: None

    def get(self, _: str) -> tuple[str, dict[str, str], int]:
        seen = (self.contents, self.metadata, self.etag)
        come, self.in_between = self.in_between, lambda: None
        come()
        return seen

    def put(self, _: str, contents: str, metadata: dict[str, str], *, if_match: int) -> bool:
        if if_match != self.etag:
            return False
        self.contents, self.metadata, self.etag = contents, metadata, self.etag + 1
        return True


def test_the_object_store_shuts_an_old_leader_out_also_one_that_was_paused_in_between() -> None:
    namespace: dict[str, Any] = {}
    exec(code("python", "An object store"), namespace)
    write, store = namespace["write_fenced"], ObjectStore()
    assert write(store, "k", 7, lambda old: old + "a")
    store.in_between = lambda: write(store, "k", 9, lambda old: old + "b")
    assert not write(store, "k", 7, lambda old: old + "c"), "it had read before the later one wrote"
    assert store.contents == "ab"
    assert write(store, "k", 9, lambda old: old + "d")


def test_the_service_shuts_an_old_leader_out() -> None:
    namespace: dict[str, Any] = {}
    exec(code("python", "An HTTP service of yours"), namespace)
    admitted, fences = namespace["admitted"], dict[str, int]()
    tokens = ("7", "9", "8", "9", "", "-1", "x", "10")
    assert [admitted(fences, "orders", token) for token in tokens] == [
        True, True, False, True, False, False, False, True,
    ]  # fmt: skip
    assert admitted(fences, "stock", "1"), "another lock counts for itself"


def test_the_page_names_every_metric() -> None:
    """By its full name, in the table."""
    page = PAGE.read_text()
    names = re.findall(r"^# TYPE (\S+)", metrics.page([], 0).decode(), re.MULTILINE)
    assert len(names) > 10
    for name in names:
        assert re.search(rf"^\|.*`{name}[`{{].*\| ", page, re.MULTILINE), name


def test_the_page_names_every_field_of_the_file() -> None:
    text = PAGE.read_text()
    for field in (*true_claim().fields(), "seen"):
        assert f"`{field}`" in text, field
