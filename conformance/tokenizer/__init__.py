"""Texts to tokens and back, and chats to texts."""
