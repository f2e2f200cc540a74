"""The campaign on a rented GPU without a network; see README.md."""
