"""The terminal chat: messages, input, and slash commands."""
