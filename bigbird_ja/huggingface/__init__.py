"""Hugging Face folders: config.json, weights, model card, and a trimmed vocabulary."""
