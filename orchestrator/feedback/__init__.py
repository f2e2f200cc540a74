"""What runs teach about load, quality and the judge, for the runs that follow."""
