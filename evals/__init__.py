"""Tasks, grading and reports: every arm measured the same way."""
