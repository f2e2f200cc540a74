"""A real pair of models, made of packages of a public registry, and what methods do with it."""
