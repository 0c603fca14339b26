"""Starts `bigbird-ja`, also as `python -m bigbird_ja`."""

from bigbird_ja.cli import main

if __name__ == "__main__":
    main()
