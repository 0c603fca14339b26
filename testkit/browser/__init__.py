"""A real browser for the tests of pages: Chromium from npm, where npm and its registry are."""

import shutil
from pathlib import Path

import pytest

from testkit import ROOT, command_line

_SOURCE = Path(__file__).parent
_HOME = ROOT / ".browser"  # what npm installs; ignored by git, kept between runs
_FILES = ("package.json", "package-lock.json", "render.mjs", "fonts.conf")


def render(page, picture, width=1280, colors="light"):
    """Draws a page.

    Args:
        page: an .html file.
        picture: the PNG to write, of the whole page.
        width: of the window, in pixels.
        colors: what the user prefers, "light" or "dark".

    Returns:
        `title`, `width` and `height` of the page in pixels, `pictures` (SVGs in it), `errors` that
        it logged, `requests` (URLs that it asked for, its own first).
    """
    home = _installed()
    done = command_line.run("node", "render.mjs", page, picture, width, colors, cwd=home)
    assert done.status == 0, done.stderr[-2000:]
    return done.json


def _installed():
    """Where the browser is; skips the test that asks for it where it cannot be had."""
    missing = [name for name in ("npm", "node") if shutil.which(name) is None]
    if missing:
        pytest.skip(f"no browser here: {' and '.join(missing)} not installed")
    _HOME.mkdir(exist_ok=True)
    for name in _FILES:
        shutil.copyfile(_SOURCE / name, _HOME / name)
    lock, mark = (_SOURCE / "package-lock.json").read_bytes(), _HOME / ".installed"
    if not mark.exists() or mark.read_bytes() != lock:
        words = ("npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund")
        done = command_line.run(*words, cwd=_HOME)
        if done.status:
            pytest.skip(f"no browser here: npm ci: {done.stderr.strip().splitlines()[-1:]}")
        _unpack_font(_HOME)
        mark.write_bytes(lock)
    return _HOME


def _unpack_font(home):
    """The package's font as a plain file: fontconfig finds no others."""
    from fontTools.ttLib import TTFont

    font = TTFont(home / "node_modules/@fontsource/kosugi/files/kosugi-japanese-400-normal.woff")
    font.flavor = None
    (home / "fonts").mkdir(exist_ok=True)
    font.save(home / "fonts/kosugi.ttf")
