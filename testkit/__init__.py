"""Shared parts of tests and benchmark scripts: local stand-ins for the cloud, small runs, kills.

`bigbird_ja` never imports it, and it is not installed with it.
"""

from pathlib import Path

# Child processes run in the root of the checkout.
ROOT = Path(__file__).resolve().parent.parent
