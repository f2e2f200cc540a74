"""The documents: their references are written from the code, and their commands are run."""
