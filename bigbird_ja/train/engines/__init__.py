"""Engines, which run the step: TensorFlow's TPUEstimator, or JAX's runtime (PJRT)."""
