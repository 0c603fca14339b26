"""Engines, which run the step with TensorFlow's TPUEstimator or JAX's runtime (PJRT)."""
