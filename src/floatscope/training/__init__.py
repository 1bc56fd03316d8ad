"""Training: one trainer for the twins, all of whose weights learn in the knowledge world, and for adapters of a parent.

`runs` has the two kinds of run; each is a learner (what is trained) on a stream (what it sees), driven by `trainer`
with the numbers of a `recipe` towards an `objective`. `gates` and `card` say what came of it.
"""
