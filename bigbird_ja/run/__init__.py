"""MODEL_DIR's files, for whoever writes or reads them: trainer, evaluation, report, export, launch.

No TensorFlow on import: the supervisor on a workstation reads and appends too.
"""
