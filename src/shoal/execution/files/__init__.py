"""Files of a workflow on disk: signatures, backups of old outputs during an attempt, directory trees."""
