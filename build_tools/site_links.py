"""Has links from docs/ to other files of the checkout lead to the repository.

A hook of MkDocs: such links work in a checkout and on the repository's pages,
and on the site the files are not there.
"""

from __future__ import annotations

import pathlib
import posixpath
import re
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parent.parent
_LINK = re.compile(r"(\]\(\s*)([^)\s#]+)(#[^)\s]*)?(\s*\))")


def on_page_markdown(markdown: str, page: Any, config: Any, **_: object) -> str:
    """Rewrites the links of one page; a file that is missing stays a warning."""
    folder = posixpath.join("docs", posixpath.dirname(page.file.src_uri))

    def rewrite(match: re.Match[str]) -> str:
        before, target, anchor, after = match.groups()
        if ":" in target or not target.startswith(".."):
            return match.group()
        path = posixpath.normpath(posixpath.join(folder, target))
        if path.startswith("docs/") or not (ROOT / path).exists():
            return match.group()
        url = f"{config['repo_url'].rstrip('/')}/blob/main/{path}"
        return f"{before}{url}{anchor or ''}{after}"

    return _LINK.sub(rewrite, markdown)
