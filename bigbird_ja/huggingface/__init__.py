"""Hugging Face folders: config.json, weights, tokenizers, trimmed vocabularies, the Hub."""
