"""This process and those it starts: signals, streams, errors, exit statuses. Lowest of all."""
