"""
Simulate servers, users and methods on a virtual clock: the real loop, with models that answer from
statistics.
"""
