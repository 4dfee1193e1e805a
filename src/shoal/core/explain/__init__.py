"""Why a task, or a whole run, is in its state: answers as data, their sources, and sentences. Pure."""
