"""Settings of a run and facts of its data set: declaration, reading, comparison."""
