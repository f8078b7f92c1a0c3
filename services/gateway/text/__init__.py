"""Text and token ids: template, tokenizer, detokeniser, stop strings. Owns every conversion; knows no HTTP."""
