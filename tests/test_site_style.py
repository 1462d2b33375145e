"""The site has the styles by which no page scrolls sideways.

Kind: something wider than its place is cut, or widens the page. Also looked at:
the report, health and dry runs as pages of their own (tests/inspection). No
browser runs here: whether all of a page is seen is for eyes, at 400, 1024 and
1440 pixels.
"""

from __future__ import annotations

import pathlib
import re

import nbformat

from inspection import frames

ROOT = pathlib.Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"


def _rules() -> dict[str, dict[str, str]]:
    """The declarations of each selector of the site's own style."""
    text = (DOCS / "assets" / "site.css").read_text()
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.S)
    rules: dict[str, dict[str, str]] = {}
    for selectors, body in re.findall(r"([^{}]+)\{([^{}]*)\}", text):
        declared = dict(re.findall(r"([\w-]+):\s*([^;]+);", body))
        for selector in re.split(r",\s*(?![^()]*\))", selectors.strip()):
            rules.setdefault(selector, {}).update(declared)
    return rules


def test_the_site_loads_every_style_of_its_assets():
    config = (ROOT / "mkdocs.yml").read_text()
    extra = re.search(r"(?m)^extra_css:\n((?:  - .*\n)+)", config).group(1)

    assert set(re.findall(r"- (\S+)", extra)) == {
        f"assets/{path.name}" for path in (DOCS / "assets").glob("*.css")
    }


def test_wide_content_scrolls_in_its_frame_and_headers_are_not_forced_wide():
    rules = _rules()

    assert rules[".md-typeset table:not([class]) th"]["min-width"] == "0"
    for frame in (
        ".md-typeset__scrollwrap",
        ".jupyter-wrapper .jp-OutputArea-output",
        ".jupyter-wrapper .jp-OutputArea-output pre",
    ):
        assert rules[frame]["overflow-x"] == "auto"
    frame = rules[".md-typeset iframe"]
    assert frame == {"box-sizing": "border-box", "max-width": "100%"}


def test_no_word_of_a_header_makes_a_table_wider_than_the_page():
    """Many columns fit where long names can be broken, or are written upwards."""
    upwards = _rules()[
        ".md-typeset table:not([class]) tr:has(th:nth-child(8)) code"
    ]
    assert upwards["writing-mode"] == "sideways-lr"

    for page in DOCS.rglob("*.md"):
        header = r"(?m)^\|(.+)\|\n\|[-:| ]+\|$"
        for names in re.findall(header, page.read_text()):
            code = "" if names.count("|") >= 7 else r"\1"
            text = re.sub(r"`([^`]*)`|\]\([^)]*\)", code, names)
            longest = max(map(len, re.split(r"[\s|]|<wbr>", text)))
            assert longest <= 20, (page, names)


def test_tables_and_frames_in_notebooks_are_no_wider_than_their_place():
    shown = []
    for path in sorted((DOCS / "notebooks").glob("*.ipynb")):
        for cell in nbformat.read(path, as_version=4).cells:
            shown += [
                output["data"]["text/html"]
                for output in cell.get("outputs", [])
                if "text/html" in output.get("data", {})
            ]
    wide = [one for text in shown for one in frames.wide_elements(text)]
    styles = re.findall(r'<iframe [^>]*style="([^"]*)"', "".join(shown))

    assert len(wide) > 5
    assert all(scrolls for _, scrolls in wide)
    assert styles
    assert all("box-sizing: border-box" in style for style in styles)


def test_pages_leave_tables_and_frames_to_markdown():
    """Frames around what Markdown makes come from the site's theme."""
    for page in DOCS.rglob("*.md"):
        text = re.sub(r"(?ms)^ *```.*?^ *```$|`[^`]+`", "", page.read_text())
        assert not re.search(r"<(?:table|svg|iframe)\b", text), page
