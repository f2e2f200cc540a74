"""A policy, a stop rule and a benchmark for stepspec, in a package of their own."""
