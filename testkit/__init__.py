"""What tests and benchmark scripts share: local stand-ins for the cloud, small runs, kills.

Nothing of it is installed with `bigbird_ja`, which never imports it.
"""

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent  # of the checkout: children run here
