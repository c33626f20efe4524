"""Families of Hugging Face's checkpoints, a file each as in engine/models."""
