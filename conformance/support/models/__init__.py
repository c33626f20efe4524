"""Small random models, what files of them say, and the logits that they should have."""
