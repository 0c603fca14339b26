"""Corpus, sentences, words, tokenizer."""
