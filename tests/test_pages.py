"""The pages of the project are short, and their links lead somewhere."""

from __future__ import annotations

import pathlib
import re
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]
MOST_LINES = {
    "README.md": 120,
    "CHANGELOG.md": 140,  # It grows with each change that users see.
    "docs/performance.md": 120,
}
MOST_LINES_OF_OTHERS = 200
# Made by a script; a journal of measurements, not a page to read through.
LONG_BY_NATURE = {"docs/ops.md", "docs/lab/design.md", "docs/lab/journal.md"}


def _pages() -> list[str]:
    listed = subprocess.run(
        ["git", "ls-files", "*.md"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    return listed.stdout.split()


def _anchor(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


@pytest.mark.parametrize("page", sorted({*_pages()} - LONG_BY_NATURE))
def test_a_page_is_short(page):
    lines = len((ROOT / page).read_text().splitlines())

    assert lines <= MOST_LINES.get(page, MOST_LINES_OF_OTHERS)


@pytest.mark.parametrize("page", _pages())
def test_the_links_of_a_page_lead_to_a_file_and_its_heading(page):
    path = ROOT / page
    dead = []
    for link in re.findall(r"\]\(([^)\s]+)\)", path.read_text()):
        if link.startswith("https://"):
            continue
        name, _, anchor = link.partition("#")
        target = path.parent / name if name else path
        if not target.exists():
            dead.append(link)
        elif anchor:
            headings = re.findall(r"(?m)^#+ (.*)$", target.read_text())
            if anchor not in map(_anchor, headings):
                dead.append(link)

    assert not dead


@pytest.mark.parametrize("page", _pages())
def test_no_name_is_broken_over_two_lines(page):
    """A page shows a space there, and who copies the name gets it."""
    text = re.sub(r"(?ms)^ *```.*?^ *```$", "", (ROOT / page).read_text())
    spans = re.findall(r"`([^`]+)`", text)

    assert not [span for span in spans if re.search(r"[.(\[/_=]\n", span)]


def test_every_page_of_docs_is_in_the_sites_menu():
    menu = (ROOT / "mkdocs.yml").read_text().partition("\nnav:")[2]
    named = set(re.findall(r"[\w/]+\.md", menu))
    pages = {p.removeprefix("docs/") for p in _pages() if p.startswith("docs/")}

    assert named == pages
