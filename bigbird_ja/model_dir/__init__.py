"""Files of MODEL_DIR: checkpoints, logs, and the model that they describe."""
