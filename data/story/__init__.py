"""A story grammar of known entropy, and the models trained on its stories."""
