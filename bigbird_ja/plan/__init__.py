"""Estimate tokens, hours and cost of a run before anything is rented."""
