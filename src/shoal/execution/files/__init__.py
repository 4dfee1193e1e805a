"""Files of a workflow on disk: what is there, old outputs put aside during an attempt, whole trees."""
