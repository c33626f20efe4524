"""A story grammar of known entropy, and the models that learned to tell its stories."""
