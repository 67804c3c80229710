"""The SQL of examples/postgresql.yaml, as it stands there, on a real PostgreSQL."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from databases import PostgreSql
from servers import wait_until

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "postgresql.yaml"


class Database:
    """psql, as the pods of the example call it."""

    def __init__(self, server: PostgreSql, folder: Path) -> None:
        self.server = server
        documents = yaml.safe_load_all(EXAMPLE.read_text())
        self.files: dict[str, str] = next(d["data"] for d in documents if d["kind"] == "ConfigMap")
        self.folder = folder
        server.sql(self.files["schema.sql"])

    def start(self, token: int, text: str = "") -> subprocess.Popen[str]:
        script = self.folder / f"work-{token}.sql"
        script.write_text(text or self.files["work.sql"])
        where = f"host={self.server.home} port={self.server.port} dbname=postgres user=postgres"
        flags = ["-v", "ON_ERROR_STOP=1", "-v", f"token={token}", "-v", f"worker=w{token}"]
        return subprocess.Popen(
            ["psql", "-q", "-d", f"{where} password={self.server.password}", *flags, "-f", script],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def work(self, token: int, text: str = "") -> str:
        """What psql complains of; nothing if the work was done."""
        run = self.start(token, text)
        _, complaint = run.communicate(timeout=60)
        assert (run.returncode == 0) == (complaint == "")
        return complaint

    def done(self) -> list[int]:
        answer = self.server.sql("SELECT token FROM work ORDER BY token")
        return [int(word) for word in answer.split() if word.isdigit()]


@pytest.fixture(scope="module")
def server() -> Iterator[PostgreSql]:
    with PostgreSql() as running:
        yield running


@pytest.fixture
def database(server: PostgreSql, tmp_path: Path) -> Iterator[Database]:
    yield Database(server, tmp_path)
    server.sql("TRUNCATE fence, work")


def test_a_leader_works_as_often_as_it_likes_and_the_next_one_after_it(database: Database) -> None:
    assert [database.work(token) for token in (5, 5, 9)] == ["", "", ""]
    assert database.done() == [5, 5, 9]


def test_the_work_of_an_old_leader_is_refused_and_undone(database: Database) -> None:
    assert database.work(9) == ""
    assert "token 5 is old: a later leader of orders was here" in database.work(5)
    assert database.done() == [9]


def test_control_without_the_fence_the_old_leader_writes(database: Database) -> None:
    unfenced = database.files["work.sql"].replace("SELECT fence('orders', :token);", "")
    assert database.work(9) == ""
    assert database.work(5, unfenced) == ""
    assert database.done() == [5, 9]


def test_a_new_leader_waits_for_work_in_flight_and_then_shuts_it_out(database: Database) -> None:
    """The old leader is paused in the middle of its transaction."""
    slow = database.files["work.sql"].replace("INSERT", "SELECT pg_sleep(2); INSERT")
    old = database.start(5, slow)
    asleep = "SELECT 1 FROM pg_stat_activity WHERE query LIKE 'SELECT pg_sleep(2)%'"
    wait_until(lambda: database.server.sql(asleep), "the old leader to be in its transaction")
    assert database.work(9) == ""
    assert old.communicate(timeout=60)[1] == ""
    order = database.server.sql("SELECT token FROM work ORDER BY ctid").split()
    assert order == ["5", "9"], "the new leader's work came after the old one's"
    assert "token 5 is old" in database.work(5)
    assert database.done() == [5, 9]
