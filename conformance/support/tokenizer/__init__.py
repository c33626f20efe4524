"""Vocabularies, small ones and real ones, and files of them."""
