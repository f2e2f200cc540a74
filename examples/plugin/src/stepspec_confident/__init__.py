"""A policy and a benchmark for stepspec, in a package of their own."""
