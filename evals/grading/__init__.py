"""Grade answers, and check the grader against worked solutions."""
