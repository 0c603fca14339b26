"""Modules that tests and benchmarks share: fake cloud services, small runs, and kills.

The package `bigbird_ja` does not import this package, and is installed without it.
"""

from pathlib import Path

# Child processes run in the root of the checkout.
ROOT = Path(__file__).resolve().parent.parent
