"""What is done to a Hugging Face folder that stays one."""
