"""Training. `start.pretrain` is its entry point, and `train.Trainer` contains the loop."""
