"""How much faster models write with drafts than without, beside what the formula allows.

- `verifying`: what a step of several tokens costs
- `replay`: a drafter of known acceptance and cost; `synthetic`: what it gains
- `pair`, `lookup`, `sparse`: a draft model, copied text, a target that skips neurons
- `writer`: a way to write, timed; `contest`: ways in turns; `page`: the report
"""
