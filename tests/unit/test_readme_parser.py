"""Commands are taken from a page as they stand there."""

from __future__ import annotations

from pathlib import Path

import pytest
import readme

PAGE = """\
# A page
```console
$ make demo     # the main job
$ helm install a b \\
    --wait
$ kubectl get dlock
NAME     HOLDER
orders   a
```
```sh
not a command
```
"""


def test_commands_come_in_order_with_their_answers(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    assert readme.commands(page) == [
        readme.Command("make demo", ""),
        readme.Command("helm install a b --wait", ""),
        readme.Command("kubectl get dlock", "NAME     HOLDER\norders   a\n"),
    ]
    assert [c.needs_a_cluster for c in readme.commands(page)] == [False, True, True]


def test_a_block_that_begins_with_an_answer_is_refused(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```console\nNAME\n```\n")
    with pytest.raises(ValueError, match="begins with an answer: 'NAME'"):
        readme.commands(page)


def test_the_readme_has_commands_of_both_kinds() -> None:
    """A parser that finds nothing would prove nothing."""
    kinds = {command.needs_a_cluster for command in readme.commands()}
    assert kinds == {True, False}
