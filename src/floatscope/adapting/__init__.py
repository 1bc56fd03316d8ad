"""Forks of a pretrained ARM: a small adapter makes it a masked diffusion model, or keeps it an ARM on the same data.

`data` and `stream` say what is trained on, `objectives` how it is scored, `training` runs it, `writing` keeps it,
`gates` and `cards` say what came of it.
"""
