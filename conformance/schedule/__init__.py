"""Many prompts at once."""
