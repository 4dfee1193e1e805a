"""The runtime system and the job servers of GSPC 2019; the public API is `shoal.runtime`."""
