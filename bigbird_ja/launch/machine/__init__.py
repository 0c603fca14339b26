"""Composes what runs on a rented machine: its start-up script, and the watcher that deletes it."""
