"""Small random models, their files, and their expected logits."""
