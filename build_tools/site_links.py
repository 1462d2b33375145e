"""Has links that work in a checkout work on the site, too.

A hook of MkDocs. Links from docs/ to other files of the checkout lead to the
repository: on the site the files are not there. Links of notebooks to pages and
other notebooks lead to what MkDocs makes of these; links of pages do so without
help.
"""

from __future__ import annotations

import logging
import pathlib
import posixpath
import re
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parent.parent
_LOG = logging.getLogger("mkdocs.hooks.site_links")  # A warning ends the build.
_HREF = re.compile(r'href="([^":#]+\.(?:md|ipynb))(#[^"]*)?"')
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


def on_page_content(html: str, page: Any, files: Any, **_: object) -> str:
    """Rewrites the links of a notebook to the site's other pages."""
    if not page.file.src_uri.endswith(".ipynb"):
        return html
    folder = posixpath.dirname(page.file.src_uri)

    def rewrite(match: re.Match[str]) -> str:
        target, anchor = match.groups()
        path = posixpath.normpath(posixpath.join(folder, target))
        file = files.get_file_from_path(path)
        if file is None:
            _LOG.warning(
                "%s has a link to %s, which is no page of the site.",
                page.file.src_uri,
                target,
            )
            return match.group()
        return f'href="{file.url_relative_to(page.file)}{anchor or ""}"'

    return _HREF.sub(rewrite, html)
