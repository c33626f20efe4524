"""Speculative decoding: a drafter proposes tokens, the target verifies them in one step, and the
text is the one that the target alone would generate.

In reading order:

- `drafter`: drafts, and the drafter interface
- `verification`: rejection sampling of drafted tokens
- `prompt_lookup`, `trie` and `lookahead`: drafters without a model
- `mtp_drafter`: drafts by the model's own multi-token-prediction blocks
- `adaptive`: adaptive draft length
- `vocabularies`: compatibility with a draft model's vocabulary, and translation
"""
