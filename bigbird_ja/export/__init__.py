"""Exports models: Hugging Face folders and SavedModels."""
