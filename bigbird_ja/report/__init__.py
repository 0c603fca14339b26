"""Report about one or more runs, as one HTML page."""
