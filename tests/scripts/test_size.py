"""`make size` counts what it says it counts."""

from __future__ import annotations

from scripts import size

TEXT = '''"""A docstring

of three lines."""

# a comment
def first(x):
    """Says what."""
    text = """not a
docstring"""

    return text  # why


class Kind:
    def second(self):
        return 1
'''


def test_code_lines_leave_out_blank_lines_comments_and_docstrings() -> None:
    assert size.code_lines(TEXT) == 7


def test_functions_count_to_the_end_of_their_body() -> None:
    assert sorted(size.function_lengths(TEXT)) == [2, 6]


def test_packages_are_the_rooms_of_the_tree() -> None:
    files = {"bigbird_ja/data/a.py": TEXT, "bigbird_ja/cli/main.py": TEXT, "tests/data/b.py": TEXT}
    sizes = size.measure(files)
    assert set(sizes) == {"bigbird_ja/data", "bigbird_ja/cli", "tests"}
    assert sizes["tests"].files == [TEXT.count("\n")]
