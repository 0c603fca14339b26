"""Training: `train.py` is where to begin."""
