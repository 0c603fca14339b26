"""Read corpora, split sentences and words, and tokenize.

- Corpora: `corpus` (values of `--input`), `file_source`, `hub_source`, `containers` (formats of
  files), `articles` (generated text), `markers` (of Wiki40b's layout).
- Sentences and words: `sentences`, `words`.
- Tokenizers: `load`, `tokenizer` (for SentencePiece), `folder_tokenizer` (for Hugging Face),
  `tokenizer_training`, `model_proto` (SentencePiece's .model files).
"""
