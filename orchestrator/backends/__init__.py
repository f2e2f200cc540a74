"""The servers that models run on. Each back end implements the interfaces of `endpoints`."""
