"""From trained weights to a published adapter that is known to work, and a way to try it."""
