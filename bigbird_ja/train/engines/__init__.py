"""Engines, which run the training step with TensorFlow's TPUEstimator or JAX's runtime (PJRT)."""
