"""
The HTTP side of the service: the application, its middleware, routes and limits, and the
pass-through.
"""
