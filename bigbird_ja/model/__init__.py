"""The BigBird encoder and its heads, as plain TensorFlow functions."""
