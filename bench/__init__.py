"""Measurements: `python -m bench`. The method is in README.md."""
