"""What one rank does: load, wrap, engine, loop, checkpoint."""
