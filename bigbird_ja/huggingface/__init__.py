"""Hugging Face folders (config.json, weights, tokenizer, model card), the Hub, and `trim`."""
