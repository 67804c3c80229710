"""Every link in our Markdown leads somewhere: files are there, and so are the headings in them."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
_LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
_FENCE = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"`[^`\n]*`")


def pages() -> list[Path]:
    """What git knows or will know: no page of an environment or a build."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    names = found.stdout.splitlines() or [str(p) for p in ROOT.glob("*.md")]
    return sorted(ROOT / name for name in names if (ROOT / name).exists())


def links(page: Path) -> list[str]:
    text = _CODE.sub("", _FENCE.sub("", page.read_text(encoding="utf-8")))
    return _LINK.findall(text)


def anchors(page: Path) -> set[str]:
    """As forges make them from headings."""
    text = _FENCE.sub("", page.read_text(encoding="utf-8"))
    titles = re.findall(r"^#+ +(.+?) *$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def broken(page: Path) -> list[str]:
    found = []
    for link in links(page):
        if re.match(r"[a-z]+:", link):
            if not re.match(r"https?://[\w.-]+(:\d+)?(/|$)", link):
                found.append(f"{link}: not an address")
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists():
            found.append(f"{link}: no such file")
        elif anchor and target.suffix == ".md" and anchor not in anchors(target):
            found.append(f"{link}: no such heading")
    return found


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    assert broken(page) == []


def test_the_pages_that_the_readme_names_are_there() -> None:
    """Or the check above would look at nothing."""
    assert len(links(ROOT / "README.md")) > 20


@pytest.mark.parametrize(
    "text",
    ["[a](missing.md)", "[a](#no-such)", "![a](no.png)", "[a](other.md#no)", "[a](htp:/x)"],
)
def test_a_broken_link_is_found(text: str, tmp_path: Path) -> None:
    (tmp_path / "other.md").write_text("# There\n")
    page = tmp_path / "page.md"
    page.write_text(f"# Here\n[fine](other.md#there) [fine](#here) `[code](x)`\n{text}\n")
    assert len(broken(page)) == 1
