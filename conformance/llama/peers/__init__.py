"""Outside implementations of LLaMA, and what they answered: the engine has to agree with them."""
