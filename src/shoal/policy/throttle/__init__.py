"""How many tasks of a category a node bears: learned from what it senses, and told as caps per category.

`throttle` is what a driver has; `choose` has the controllers by name. `readings` makes control periods of samples,
`profile` learns what a task uses, `effect` says how many tasks' worth of work really got done, `climb` looks for the
number to hold, `turns` says which categories run together. All of it is pure: who samples, counts, starts and keeps
profiles is left to others.
"""
