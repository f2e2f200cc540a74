"""Reports on run folders: read them, work out the figures, write them as Markdown, JSON and one page."""
