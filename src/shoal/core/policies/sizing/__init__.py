"""How much of a resource a task gets that does not declare it, learned from tasks of its category. Pure."""
