"""Rows in, token arrays and a verdict out. No torch in here."""
