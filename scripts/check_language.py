"""Check those language rules that a program can verify (a part of `make lint`).

    python -m scripts.check_language            # prints each finding as FILE:LINE: RULE: TEXT
    python -m scripts.check_language --count    # prints the number of findings by rule

Rules:

- The summary of a docstring contains no semicolon, since it is one statement.
- The entries of `Raises:` begin with a capital letter.
- An error message contains at most one colon that introduces something.
- The help of a switch is an imperative, such as "Print the plan".
"""

import argparse
import ast
import collections
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

FOLDERS = ("bigbird_ja", "scripts", "testkit", "tests")
# A colon before a space introduces advice or a reason. Colons in times and addresses do not match.
_COLON = re.compile(r":(?=\s)")
_RAISES = re.compile(r"^\s+(?P<kind>[A-Z]\w+): (?P<text>\S.*)")
# A switch's help that begins with a verb in the third person, as in "Moves an existing run".
_VERB = re.compile(r"[A-Z][a-z]+(?<!s)s (?:the|a|an|all|each|also|only|every)\b")


def main() -> int:
    """Print the findings in the files that git tracks, and return 1 if there are any."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", action="store_true", help="print numbers only")
    parser.add_argument("files", nargs="*", help="the files to check; by default all")
    given = parser.parse_args()
    findings = [each for path in given.files or _tracked_files() for each in check_file(path)]
    if given.count:
        counts = collections.Counter(rule for _, rule, _ in findings)
        print("\n".join(f"{count:5d}  {rule}" for rule, count in counts.most_common()))
    else:
        print("\n".join(f"{place}: {rule}: {text}" for place, rule, text in findings))
    return bool(findings)


def check_file(path: str) -> Iterator[tuple[str, str, str]]:
    """Yield each violation in a file: `FILE:LINE`, the rule, and the text that violates it."""
    tree = ast.parse(Path(path).read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _check_docstring(path, node)
        elif isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            for text in map(_literal, node.exc.args):
                if len(_COLON.findall(text)) > 1:
                    yield f"{path}:{node.lineno}", "more than one colon in an error", text
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "switch":
            text = _literal(node.args[1]) if len(node.args) > 1 else ""
            if _VERB.match(text):
                yield f"{path}:{node.lineno}", "a switch that is no imperative", text


def _check_docstring(path: str, node: ast.AST) -> Iterator[tuple[str, str, str]]:
    docstring = ast.get_docstring(node)  # type: ignore[arg-type]
    if not docstring:
        return
    place = f"{path}:{node.body[0].lineno}"  # type: ignore[attr-defined]
    summary = docstring.partition("\n\n")[0]
    if ";" in re.sub(r"`[^`]*`", "", summary):
        yield place, "two statements in a summary", " ".join(summary.split())
    raises = docstring.partition("Raises:\n")[2]
    for line in raises.splitlines():
        entry = _RAISES.match(line)
        if entry and entry["text"][0].islower():
            yield place, "a lower-case entry of Raises", line.strip()


def _literal(node: ast.AST) -> str:
    """Return the text of a string literal, or "" for other expressions.

    Each expression in an f-string becomes `{}`.
    """
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    if isinstance(node, ast.JoinedStr):
        parts = (each.value if isinstance(each, ast.Constant) else "{}" for each in node.values)
        return "".join(map(str, parts))
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _literal(node.left) + _literal(node.right)
    return ""


def _tracked_files() -> list[str]:
    patterns = [f"{folder}/*.py" for folder in FOLDERS]
    listed = subprocess.run(["git", "ls-files", *patterns], check=True, stdout=subprocess.PIPE)
    return [path for path in listed.stdout.decode().splitlines() if Path(path).is_file()]


if __name__ == "__main__":
    sys.exit(main())
