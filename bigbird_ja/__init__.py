"""Pretrain long-sequence transformers (Japanese BigBird) on preemptible Cloud TPUs."""


def __getattr__(name: str) -> str:
    """Find `__version__` when it is asked for: in a checkout that runs git."""
    if name == "__version__":
        from bigbird_ja.version import find_version

        return find_version()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
