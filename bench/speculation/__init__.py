"""How much faster models write with drafts than without, beside what the formula allows.

- `writer`: what is written, by a drafter of known acceptance and cost too, and timed
- `races`: which ways take turns; bench/report/speculation.py tells what they came to
"""
