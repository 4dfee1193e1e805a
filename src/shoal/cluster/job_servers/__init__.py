"""The GSPC19 run-time system and its job servers; `shoal.runtime` is their public face."""
