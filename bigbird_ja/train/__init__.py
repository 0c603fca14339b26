"""The train step, and the engine, checkpoints and guards around it."""
