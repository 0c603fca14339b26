"""Corpus, sentences, words, tokenizer."""

MASK = "[MASK]"  # the mask in a text that a person types
