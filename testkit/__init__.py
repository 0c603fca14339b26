"""Modules that tests and benchmarks share, such as fake cloud services and small training runs.

The package `bigbird_ja` does not import `testkit`, and is installed without `testkit`.
"""

from pathlib import Path

# Child processes run in the root of the checkout.
ROOT = Path(__file__).resolve().parent.parent
