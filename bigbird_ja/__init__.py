"""Pretrain long-sequence transformers (Japanese BigBird) on preemptible Cloud TPUs."""

__version__ = "0.1.0"
