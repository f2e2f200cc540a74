"""Estimate, from a few minutes of measurements, what methods gain on a pair of servers."""
