"""Hooks of mkdocs (`make site`): the repository's address, and links to files outside docs/.

The address stands in pyproject.toml alone. A page may link what lies elsewhere in the repository;
the site leads there, and a link that leads nowhere is a warning, which ends a strict build.
"""

import logging
import os
import re
from pathlib import Path
from typing import Any

_LINK = re.compile(r"\]\((\.\./[^)\s#]*)(#[^)\s]*)?\)")
_log = logging.getLogger("mkdocs.hooks.site_links")


def on_config(config: Any) -> Any:
    """Takes the repository's address from pyproject.toml."""
    project = (_root(config) / "pyproject.toml").read_text("utf-8")
    config.repo_url = re.findall(r'(?m)^Repository = "(.*)"$', project)[0]
    config.repo_name = config.site_name
    return config


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Leads links that leave docs/ to the repository."""
    folder = Path(page.file.abs_src_path).parent

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
