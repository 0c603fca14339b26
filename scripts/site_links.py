"""Hooks of mkdocs (`make site`).

They read the repository's address from pyproject.toml, and add the generated pages. A page may link
to a file of the repository outside of docs/. The site then links to this file in the repository. A
link to a missing file causes a warning, with which a strict build fails.
"""

import logging
import os
import re
import sys
from pathlib import Path
from typing import Any

_LINK = re.compile(r"\]\((\.\./[^)\s#]*)(#[^)\s]*)?\)")
_log = logging.getLogger("mkdocs.hooks.site_links")


def on_config(config: Any) -> Any:
    """Read the repository's address from pyproject.toml."""
    project = (_root(config) / "pyproject.toml").read_text("utf-8")
    config.repo_url = re.findall(r'(?m)^Repository = "(.*)"$', project)[0]
    config.repo_name = config.site_name
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the pages that are generated from the settings, docstrings and flags."""
    from mkdocs.structure.files import File

    sys.path.insert(0, str(_root(config)))
    from scripts import make_docs

    for name, text in make_docs.site_pages().items():
        if known := files.get_file_from_path(name.removeprefix("docs/")):
            files.remove(known)
        files.append(File.generated(config, name.removeprefix("docs/"), content=text))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Convert links that leave docs/ to links into the repository."""
    folder = Path(config.docs_dir, page.file.src_uri).parent

    def led(link: re.Match[str]) -> str:
        there = Path(os.path.normpath(folder / link[1]))
        if there.is_relative_to(config.docs_dir):
            return link[0]
        if not there.exists():
            _log.warning("%s: %s leads nowhere", page.file.src_uri, link[1])
        path = there.relative_to(_root(config)).as_posix()
        return f"]({config.repo_url}/blob/main/{path}{link[2] or ''})"

    return _LINK.sub(led, markdown)


def _root(config: Any) -> Path:
    return Path(config.config_file_path).parent
