"""Hugging Face folders and SavedModels."""
