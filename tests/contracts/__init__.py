"""Properties of every implementation of an interface, tested once for all of them."""
