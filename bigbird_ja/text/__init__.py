"""Read corpora, split sentences and words, and tokenize."""

MASK = "[MASK]"  # the mask in a text that a person types
