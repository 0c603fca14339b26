"""Operations on a Hugging Face folder whose result is one again."""
