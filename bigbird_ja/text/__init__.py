"""Read corpora, split sentences and words, and tokenize.

- Corpora: `corpus` (values of `--input`), `file_source`, `hub_source`, `containers` (files of
  text), `articles` (generated text), `markers` (Wiki40b's).
- Sentences and words: `sentences`, `words`.
- Tokenizers: `load`, `tokenizer` (SentencePiece's), `folder_tokenizer` (Hugging Face's),
  `tokenizer_training`, `model_proto` (SentencePiece's files).
"""
