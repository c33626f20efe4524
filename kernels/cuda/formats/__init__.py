"""Weight formats on a GPU: decoded, and packed for it."""
