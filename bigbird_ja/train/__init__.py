"""Training: begin with `train.py`."""
