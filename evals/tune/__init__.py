"""One command that measures a pair of servers and says which method pays: `stepspec tune`."""
