"""Chains, the loop that grows them, and the seams to models and policies."""
