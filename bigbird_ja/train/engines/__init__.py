"""Engines, which run the step by TensorFlow's TPUEstimator or JAX's runtime (PJRT)."""
