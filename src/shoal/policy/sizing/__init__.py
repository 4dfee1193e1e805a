"""How much of a resource an undeclared task gets: learned from what tasks of its category have used.

`workqueue` and `buckets` restate Work Queue's arithmetic; `sketch`, `chain` and `sizer` are our own default. All of it
is pure: who measures, who enforces and who stores what was learned is left to others.
"""
