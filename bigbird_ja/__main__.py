"""`python -m bigbird_ja` is `bigbird-ja`."""

from bigbird_ja.cli import main

if __name__ == "__main__":
    main()
