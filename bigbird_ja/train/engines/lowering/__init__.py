"""Lowering of the train step from TensorFlow to HLO, for JAX to compile and run."""
