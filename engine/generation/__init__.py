"""Generation of text, token by token: completions, results and scores."""
