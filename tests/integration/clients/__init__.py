"""What users of other people's clients write, each for an environment of its own; see docs/clients.md."""
