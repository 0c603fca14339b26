"""Training, which begins with `train.py`."""
