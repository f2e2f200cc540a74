"""Measurements of the project itself on the miniature pair: one command each."""
