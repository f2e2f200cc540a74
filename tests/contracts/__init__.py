"""What every implementation of an interface promises, tested once for all of them."""
