"""Entry point of `python -m bigbird_ja`, which is the same as `bigbird-ja`."""

from bigbird_ja.cli import main

if __name__ == "__main__":
    main()
