"""Read corpora, split sentences and words, and tokenize.

- Corpora: `corpus` (values of `inputs`), `file_source`, `containers` (files of text), `hub_source`
  (rows of the Hub), `articles` (generated text), `markers` (Wiki40b's).
- Sentences and words: `sentences`, `words`.
- Tokenizers: `load`, `tokenizer` (SentencePiece's), `folder_tokenizer` (Hugging Face's, stored),
  `tokenizer_training`, `model_proto` (SentencePiece's files).
"""
