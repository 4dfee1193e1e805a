"""What a run leaves behind: its records, what they add up to, and what is up to date because of them.

Imports `shoal.core`. Its face: `records` and `file` (the log), `status` (how a run stands), `views` (for pages and
reports), `up_to_date` (what has to run), `workspace` (where a workflow keeps all this).
"""
