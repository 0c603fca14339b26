"""Report runs in one HTML page."""
