"""What people see: command line, live page, terminal display, notebooks and reports.

Imports every layer below it; nothing imports it, except by name through `shoal.extensions`.
"""
