"""An engine in turns with its peers, and where the time of a step goes."""
