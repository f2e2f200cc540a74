"""
Reports about runs: read run folders, compute figures, and write them as Markdown, JSON and HTML.
"""
