"""One module for each point in which the methods were unlike their papers, or wrong."""
