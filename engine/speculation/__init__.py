"""Speculative decoding: a drafter proposes tokens, the target verifies them in one step, and the
text is the one that the target alone would have written.

The room, in reading order:

- `drafter`: what a draft is, and what a drafter does
- `verification`: the target's token where tokens were drafted, distributed as without
- `prompt_lookup`, `trie` and `lookahead`: drafters that need no model
- `own_heads`: a drafter that is the model's own block for it
- `adaptive`: how many tokens are worth drafting
- `vocabularies`: whether a draft model's tokens are the target's, and translation where they aren't
"""
