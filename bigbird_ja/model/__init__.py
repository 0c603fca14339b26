"""The encoders and their heads, as plain TensorFlow functions."""
