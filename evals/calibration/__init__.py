"""Find a threshold with a statistical promise, and check by simulation that the promise holds."""
