"""Quantised weights and importance matrices."""
