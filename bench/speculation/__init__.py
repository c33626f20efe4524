"""How much faster models write with drafts than without, beside what the formula allows.

- `texts`: what is written, and a drafter of known acceptance and cost
- `writer`: a way to write, timed
- `races`: which ways take turns; bench/report/speculation.py tells what they came to
"""
