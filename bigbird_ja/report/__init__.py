"""Report runs in one HTML page."""

from bigbird_ja.report.page import page
from bigbird_ja.report.run_logs import RunLogs, name_apart

__all__ = ["RunLogs", "name_apart", "page"]
