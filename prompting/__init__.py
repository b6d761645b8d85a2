"""Text to token ids and back: chat template, tokenizer, and the seam between a cached prefix and what follows."""
