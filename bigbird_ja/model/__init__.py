"""Defines the encoders and their heads, as plain TensorFlow functions."""
