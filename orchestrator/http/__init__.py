"""HTTP connections to the servers of models and verifiers, whatever their protocol is."""
