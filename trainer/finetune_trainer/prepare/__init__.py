"""The first stage of a run: checks every row, tokenises, and publishes the arrays that ranks read."""
