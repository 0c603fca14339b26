"""Makes the HTML page about runs."""
