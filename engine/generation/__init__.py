"""A text in the making, token by token: completions, results and scores."""
