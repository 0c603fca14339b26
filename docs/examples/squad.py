"""Convert data sets in SQuAD's layout, such as JaQuAD and JSQuAD, to documents and questions.

    git clone --depth 1 https://github.com/SkelterLabsInc/JaQuAD
    python docs/examples/squad.py JaQuAD/data/train/*.json --output jaquad

Writes two files that embed.py and search.py read. documents.jsonl.gz contains `id` and `text`,
where each line of a text is a paragraph of the article. questions.jsonl.gz contains `query`, `id`,
`paragraph_start` and `paragraph_end`, which are the range of characters of the paragraph that the
question is about.
"""

import argparse
import gzip
import json
import sys
from pathlib import Path
from typing import Any

Rows = list[dict[str, Any]]


def add(articles: Rows, documents: Rows, questions: Rows) -> None:
    """Add the articles of a file to the documents and questions."""
    for article in articles:
        name, text = f"{len(documents):04d} {article['title']}", ""
        for paragraph in article["paragraphs"]:
            text += "\n" if text else ""
            start, text = len(text), text + paragraph["context"]
            place = {"id": name, "paragraph_start": start, "paragraph_end": len(text)}
            questions += [{"query": each["question"], **place} for each in paragraph["qas"]]
        documents.append({"id": name, "text": text})


def main() -> None:
    """Read the flags, and convert the files."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="+", type=Path, help="JSON files")
    parser.add_argument("--output", type=Path, required=True, help="folder to write to")
    args = parser.parse_args()
    documents: Rows = []
    questions: Rows = []
    for path in args.files:
        try:
            add(json.loads(path.read_text("utf-8"))["data"], documents, questions)
        except (OSError, ValueError, KeyError, TypeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not in SQuAD's layout"
            print(f"squad: cannot read {path} ({reason})", file=sys.stderr)
            raise SystemExit(2) from None
    args.output.mkdir(parents=True, exist_ok=True)
    for name, rows in (("documents", documents), ("questions", questions)):
        with gzip.open(args.output / f"{name}.jsonl.gz", "wt", encoding="utf-8") as file:
            file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    print(f"{len(documents)} documents, {len(questions)} questions")


if __name__ == "__main__":
    main()
