"""Fake servers in place of services that tests must not use: buckets, TPU APIs, the Hub."""
