"""`make size` counts what it says it counts."""

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
    field = 1
    """What it is for."""

    def second(self):
        return 1
'''


def test_code_lines_leave_out_blank_lines_comments_and_docstrings():
    assert size.code_lines(TEXT) == 8
    assert sorted(size.function_lengths(TEXT)) == [2, 6]
