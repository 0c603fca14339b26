"""Exports of a model: a folder for Hugging Face's libraries, or a SavedModel."""
