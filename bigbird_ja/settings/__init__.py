"""Settings of a run and the facts of its data set: declarations, reading, comparison."""
