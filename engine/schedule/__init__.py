"""Many prompts at once: who is admitted, what a step evaluates, and who is put back."""
