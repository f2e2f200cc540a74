"""
The programs that run on the machine, as the package `kit`. Those that prepare it need the standard
library only.
"""
